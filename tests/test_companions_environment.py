"""The environment of `make companions`: what it pins, and which Pythons it is for."""

from __future__ import annotations

import sys
from collections import namedtuple
from pathlib import Path

import companions
import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
Release = namedtuple("Release", "major minor micro")


def pins(name: str) -> list[Requirement]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if "==" in line and not line.startswith("#")]


def test_it_has_the_companions_that_the_project_asks_for() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    group = text[text.index("\ncompanions = [") :].split("[", 1)[1].split("\n]", 1)[0]
    asked = [Requirement(line.split('"')[1]) for line in group.splitlines() if line.strip().startswith('"')]
    pinned = {pin.name: Version(str(next(iter(pin.specifier)).version)) for pin in pins("requirements-companions.txt")}
    assert {"pytorch-lightning", "optimum-graphcore", "torch-geometric"} <= {each.name for each in asked}
    assert [str(each) for each in asked if pinned.get(each.name) not in each.specifier] == []


def test_it_replaces_nothing_of_the_environment_below() -> None:
    below = {pin.name for pin in pins("requirements.txt")}
    assert below & {pin.name for pin in pins("requirements-companions.txt")} == set()


def test_a_python_without_wheels_of_the_tokenizers_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(companions, "LAYER", tmp_path / "layer")
    monkeypatch.setattr(sys, "version_info", Release(3, 12, 1))
    assert companions.main() == 1
    assert "make PYTHON=python3.11 companions" in capsys.readouterr().err
    assert not (tmp_path / "layer").exists()
