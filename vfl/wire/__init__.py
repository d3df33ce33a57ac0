"""The wire format: tensors and messages as bytes."""
