"""Many runs of one experiment: the settings to vary, the results, and the search for the cheapest ratios."""
