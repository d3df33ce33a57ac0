"""The commands, installed as ``vfl.commands``: ``lvfl train`` and ``python -m vfl train`` are ``scripts/train.py``.

Each command adds its arguments before it imports the modules that do the work, in ``main``: ``--help`` need not wait
for PyTorch.
"""
