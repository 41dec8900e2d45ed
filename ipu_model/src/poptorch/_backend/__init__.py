"""The replacement for PopTorch's compiled backend: turns a module and options into a program on the IPU Model."""
