"""Trained models as files that run without this project: torch.export and ONNX, each with a card."""
