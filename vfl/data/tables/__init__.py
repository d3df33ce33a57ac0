"""Tables of several owners: from files to keys, labels and prepared numbers."""
