"""Horizontal (sample) partitions: every client holds all features of its own samples."""
