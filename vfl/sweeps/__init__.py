"""Many runs of one experiment: the settings to vary, and the results."""
