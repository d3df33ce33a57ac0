"""Vertical federated learning with split-model pruning and embedding sparsification."""
