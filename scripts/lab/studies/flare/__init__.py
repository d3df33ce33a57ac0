"""FLARE's figures: which runs they take, their numbers, plots and page."""
