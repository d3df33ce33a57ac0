"""Many runs of one experiment: what is varied, what came out, and the search for the cheapest ratios."""
