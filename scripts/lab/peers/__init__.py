"""Peers: other projects on the same data as ours, each in an environment of its own made from the package index."""
