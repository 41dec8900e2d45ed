"""Whatever the project has from elsewhere is listed with its source and licence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from course_site.licences import PIECES, copy_licences


def test_every_file_of_data_has_its_source_and_licence(project: Path) -> None:
    text = (project / "data" / "README.md").read_text(encoding="utf-8")
    files = [file.name for file in (project / "data").iterdir() if file.suffix in (".json", ".npz")]
    assert len(files) >= 3
    for name in files:
        section = text.partition(f"\n## `{name}`")[2].partition("\n## ")[0]
        rows = re.findall(r"^\| (\w+) \| \S", section, re.MULTILINE)
        assert {"Content", "Source", "Licence"} <= set(rows), name


def test_every_file_of_figures_in_other_folders_exists(project: Path) -> None:
    section = (project / "data" / "README.md").read_text(encoding="utf-8").partition("## Figures in other folders")[2]
    patterns = [
        name for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for name in re.findall(r"`(.+?)`", row)
    ]
    assert len(patterns) >= 8
    assert [pattern for pattern in patterns if not list(project.glob(pattern))] == []


def test_every_file_with_published_figures_is_covered(project: Path) -> None:
    section = (project / "data" / "README.md").read_text(encoding="utf-8").partition("## Figures in other folders")[2]
    covered = {file for pattern in re.findall(r"`(.+?)`", section) for file in project.glob(pattern)}
    folders = ("ipu_model/src", "src/ipu_course")
    published = {file for folder in folders for file in (project / folder).rglob("published.*")}
    assert len(published) > 5
    assert {file for file in published if file.suffix not in (".py", ".pyc")} <= covered


def test_the_page_of_licences_names_every_piece_of_the_site(project: Path) -> None:
    text = (project / "docs" / "licences.md").read_text(encoding="utf-8")
    section = text.partition("## The built site")[2]
    named = re.findall(r"^\| [^|]*\(`([\w-]+)`\)", section, re.MULTILINE)
    assert sorted(named) == sorted(PIECES)


def test_licences_of_pieces_are_copied(tmp_path: Path) -> None:
    copy_licences(tmp_path / "licences", ["pygments"])
    assert "Redistributions in binary form" in (tmp_path / "licences" / "pygments.txt").read_text(encoding="utf-8")


def test_a_piece_without_a_licence_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Installed:
        files = ()

    monkeypatch.setattr("course_site.licences.distribution", lambda name: Installed())
    with pytest.raises(FileNotFoundError, match="furo has no file with its licence"):
        copy_licences(tmp_path, ["furo"])
