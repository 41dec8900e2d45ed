"""Builds the course's notebooks from notebooks/source and checks that the two agree.

README.md beside this file describes the source format.
"""

from __future__ import annotations
