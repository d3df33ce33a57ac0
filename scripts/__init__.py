"""The commands. This folder is installed as the package ``lvfl``: ``lvfl train`` is ``scripts/train.py``.

Each reads its arguments before it imports what does the work, in ``run``: ``--help`` need not wait for PyTorch.
"""
