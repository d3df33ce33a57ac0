"""The computations that both sides of vertical learning share, without a link: read ``reference`` first.

``parties/`` imports it; nothing else in ``vfl/`` does.
"""
