"""Paired benchmarks: both sides of a comparison in one process, in turn, so that a busy machine hits both alike."""
