"""gRPC streams over mutual TLS, as both sides use them."""
