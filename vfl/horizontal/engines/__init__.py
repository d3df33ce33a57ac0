"""Engines of local training: one client after the other, stacked, or over several processes."""
