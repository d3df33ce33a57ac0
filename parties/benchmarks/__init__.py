"""Timings and endurance runs of the two sides, in one process and in many."""
