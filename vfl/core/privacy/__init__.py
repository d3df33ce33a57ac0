"""Defences of the owners, and the epsilon that they keep."""
