"""Builds the course's notebooks from the lessons' sources and checks that the two agree.

README.md beside this file describes the source format.
"""

from __future__ import annotations
