"""Lesson 09: CNN benchmarks: read a table of throughputs."""
