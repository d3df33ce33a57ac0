"""Uses of a trained run whose parties are processes: predict, compare."""
