"""Fixtures that several of the course's tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

# Only the tool behind `make upstream-tests` runs these tests; see test_upstream_tests.py.
collect_ignore = ["upstream_style"]


@pytest.fixture(scope="session")
def project() -> Path:
    """The project's folder."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place for the records of a learner who has answered nothing yet."""
    from ipu_course.progress import notes

    path = tmp_path / "mine" / "progress.json"
    monkeypatch.setenv("IPU_COURSE_PROGRESS", str(path))
    monkeypatch.setattr(notes, "_waiting", [])
    return path
