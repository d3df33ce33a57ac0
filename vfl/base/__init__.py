"""Ground of every room: errors, random streams, metrics, costs, digests."""
