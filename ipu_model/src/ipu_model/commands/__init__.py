"""Every command of `python -m ipu_model`."""
