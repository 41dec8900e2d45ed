"""Lesson 10: Data parallelism: many replicas, many processes."""
