"""The experiment of the LVFL paper (section VI): which runs it takes, their numbers, plots and report."""
