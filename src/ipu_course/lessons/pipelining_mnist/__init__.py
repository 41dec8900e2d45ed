"""Lesson 06: Pipelining: one network on several IPUs."""
