"""The report of a run or a sweep: what was reached, what it cost, and what the cheaper settings lost."""
