"""gRPC streams over mutual TLS, common to both sides."""
