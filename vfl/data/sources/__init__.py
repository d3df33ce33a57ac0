"""Origins of samples: one file per origin; each makes a `Source`."""
