"""Private matching of keys without a link: points of a group, and the join of the points at the server.

``parties/matching`` imports it.
"""
