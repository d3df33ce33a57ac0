"""The laboratory: studies of the papers, run from a checkout; no part of the package."""
