"""Private matching of keys: points of a group, their join at the server, and both sides of a match, over any link."""
