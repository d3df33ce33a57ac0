"""Lightweighting of a party: pruning (alpha), sparsification (beta), and the controllers that choose both for a round.

Other rooms import ``pruning``, ``sparsify``, ``quantise``, ``forecast`` and, to choose ratios, ``schedule``.
"""
