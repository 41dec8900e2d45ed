"""Lesson 00: Start here: an IPU in ten minutes."""
