"""Comparison: what the other owners add, and which columns matter."""
