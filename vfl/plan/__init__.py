"""The plan of a run: its costs, before it is trained."""
