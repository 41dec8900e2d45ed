"""PopTorch's public API on the IPU Model."""
