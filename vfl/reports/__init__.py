"""The report of a run or a sweep: results, costs, and the loss of accuracy of the cheaper settings."""
