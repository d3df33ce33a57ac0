"""Training from Python: what ``import vfl`` offers (docs/python.md)."""
