"""Errors that the course's programs show in one line."""

from __future__ import annotations


class CourseError(RuntimeError):
    """What the user asked for cannot be done; the message says why and what works instead."""


class DataError(CourseError):
    """A data set is missing, damaged or not to be had."""


class SettingsError(CourseError):
    """Settings that do not work together or with the data."""
