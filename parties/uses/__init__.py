"""Uses of a finished run whose parties are processes: one opener; predict, compare."""
