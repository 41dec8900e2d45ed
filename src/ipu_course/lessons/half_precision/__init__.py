"""Lesson 01: Half precision."""
