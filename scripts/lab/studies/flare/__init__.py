"""FLARE's figures: their runs, numbers, plots and page."""
