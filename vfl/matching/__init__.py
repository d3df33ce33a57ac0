"""Matching keys in private: the group in which they are compared, and what the server joins."""
