"""The commands. This folder is installed as the package ``lvfl``: ``lvfl train`` is ``scripts/train.py``.

Each command adds its arguments before it imports the modules that do the work, in ``main``: ``--help`` need not wait
for PyTorch.
"""
