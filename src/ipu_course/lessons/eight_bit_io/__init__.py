"""Lesson 04: 8-bit I/O: send bytes, normalise on the device."""
