"""The one list of words for a party that is absent, or has no row."""

from typing import Literal

WhenAbsent = Literal["refuse", "placeholder", "zeros", "mean", "own"]
"""Words for what replaces the embedding of an owner without a row; `serving.when_absent` explains them."""
