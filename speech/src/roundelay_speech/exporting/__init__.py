"""Acoustic models for other programs: ONNX, and programs of `torch.export` (docs/exporting.md)."""
