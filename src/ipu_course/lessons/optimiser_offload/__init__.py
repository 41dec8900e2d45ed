"""Lesson 08: Optimiser state: on the chip or off it."""
