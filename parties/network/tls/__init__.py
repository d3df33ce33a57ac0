"""Identities on the network: certificates of the server and the parties, and their files."""
