"""A finished run at work: predict, export, the vertical mode."""
