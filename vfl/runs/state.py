"""Type of the saved state of an object, as ``vfl/runs/checkpoint.py`` writes it."""

from typing import Any

State = dict[str, Any]
"""Nested dicts with string keys, lists, None, bool, int, float, str and torch tensors."""
