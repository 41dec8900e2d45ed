"""Stands in for Horovod where it is not installed: `horovod.torch` among the instances of `poprun`."""
