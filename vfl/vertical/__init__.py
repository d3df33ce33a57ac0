"""What both sides of the LVFL algorithm share; the sides themselves are in ``parties``."""
