"""The project's public address is read from one setting, which may be empty."""

from __future__ import annotations

from pathlib import Path

import pytest
from project_address import project_address


def write(folder: Path, text: str) -> Path:
    path = folder / "pyproject.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("text", ["", "[tool.project]\n", '[tool.project]\naddress = ""\n'])
def test_no_address_is_an_empty_text(text: str, tmp_path: Path) -> None:
    assert project_address(write(tmp_path, text)) == ""


def test_an_address_has_no_slash_at_its_end(tmp_path: Path) -> None:
    path = write(tmp_path, '[tool.project]\naddress = "https://host.example/owner/course/"\n')
    assert project_address(path) == "https://host.example/owner/course"


@pytest.mark.parametrize(
    "value",
    [
        '"host.example/owner/course"',
        '"http://host.example/o/c"',
        '"https://host.example"',
        '"https://h.example/o/c?x=1"',
        "3",
    ],
)
def test_something_else_is_refused_with_the_form_it_should_have(value: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not like https://HOST/OWNER/NAME"):
        project_address(write(tmp_path, f"[tool.project]\naddress = {value}\n"))


def test_the_setting_of_this_project_can_be_read() -> None:
    assert project_address() == "" or project_address().startswith("https://")
