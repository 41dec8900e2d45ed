"""Lesson 02: Gradient accumulation: many micro-batches, one weight update."""
