"""The shipped experiments, installed as ``vfl.shipped_configs``."""
