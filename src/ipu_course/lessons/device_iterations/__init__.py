"""Lesson 03: Device iterations: let the loop run on the device."""
