"""Parties as processes of their own: the stream between each of them and the head server."""
