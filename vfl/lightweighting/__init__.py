"""What a party is spared: pruning (alpha), sparsification (beta), and who chooses both for a round.

Others import ``pruning``, ``sparsify``, ``quantise``, ``forecast`` and, to choose ratios, ``schedule``.
"""
