"""Measurements on public tables."""
