"""Lesson 05: Asynchronous data loading: load while the IPUs work."""
