"""Both sides of a match, whatever link is between them."""
