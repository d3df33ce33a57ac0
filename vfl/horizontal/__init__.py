"""Horizontal learning: an algorithm is one file, an engine computes local training, and neither knows the other.

Other packages import ``algorithm``; ``mode`` is found by name.
"""
