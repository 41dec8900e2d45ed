"""Packages that programs expect beside PopTorch; each is found only where the real one is not installed."""
