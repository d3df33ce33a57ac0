"""The two sides of vertical federated learning and the links between them."""
