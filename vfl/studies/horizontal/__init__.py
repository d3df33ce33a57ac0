"""The comparison of the horizontal algorithms in the settings of their papers."""
