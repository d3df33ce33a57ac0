"""Studies of owners that learn for themselves: auxiliary classifiers, and learning alone."""
