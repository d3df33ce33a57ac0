"""The experiment of the LVFL paper (section VI): its runs, numbers, plots and report."""
