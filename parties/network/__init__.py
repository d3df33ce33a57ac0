"""Parties as separate processes: the stream between each of them and the head server."""
