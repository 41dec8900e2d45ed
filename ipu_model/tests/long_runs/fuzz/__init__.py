"""Random programs for PopTorch, each compared with plain PyTorch: `make fuzz`."""
