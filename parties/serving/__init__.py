"""Scores by key over HTTP, while the owners are at work."""
