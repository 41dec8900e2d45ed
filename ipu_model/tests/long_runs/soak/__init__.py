"""Long runs that must not grow: `make soak`."""
