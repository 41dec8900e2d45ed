"""What pytest leaves out of the course's tests."""

from __future__ import annotations

# Only the tool behind `make upstream-tests` runs these tests; see test_upstream_tests.py.
collect_ignore = ["upstream_style"]
