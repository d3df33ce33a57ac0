"""Both sides of a match, over any link."""
