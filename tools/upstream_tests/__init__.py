"""Run PopTorch's own tests, from a checkout of its sources, against the `poptorch` of this project."""
