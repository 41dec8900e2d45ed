"""Stands where PopTorch's compiled half stood: from a module and options to a program on the IPU Model."""
