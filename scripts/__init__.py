"""The commands. This folder is installed as the package ``lvfl``: ``lvfl train`` is ``scripts/train.py``."""
