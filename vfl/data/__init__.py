"""Samples and their holders: data sources, tables, partitions, and a party's part on disk.

Other rooms import ``source`` (the interface), ``samples`` (the tensors that all other code uses) and ``files`` (a part
as a file).
"""
