"""Who holds which samples: data sources, tables, partitions, and a party's part on disk.

Others import ``source`` (the interface), ``samples`` (what all other code sees) and ``files`` (a part as a file).
"""
