"""Where samples come from: one file per origin, each of which makes a `Source`."""
