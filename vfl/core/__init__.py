"""The computations that both sides of vertical learning share, and their links: read ``reference`` first."""
