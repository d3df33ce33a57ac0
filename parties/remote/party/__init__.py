"""A party's process: it dials out and does what is due."""
