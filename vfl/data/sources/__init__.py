"""Origins of samples: one file per origin, each of which makes a `Source`."""
