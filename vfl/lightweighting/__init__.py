"""Lightweighting: pruning of feature models (alpha), sparsification of embeddings (beta), and their schedules."""
