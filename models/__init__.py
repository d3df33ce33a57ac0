"""Plain models: feature models of the parties, heads of the server."""
