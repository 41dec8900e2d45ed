"""Ops of the graph that PyTorch does not have, or not in a form that can be traced: each is one op on the device."""
