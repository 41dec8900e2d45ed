"""Compiled programs in files: exported models, executables and the executable cache."""
