"""Lesson 07: Sharded debugging."""
