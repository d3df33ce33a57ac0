"""Classifiers of horizontal learning; they import torch only."""
