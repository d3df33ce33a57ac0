"""Horizontal federated learning: clients hold different samples of the same features."""
