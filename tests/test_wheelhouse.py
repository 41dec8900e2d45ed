"""A wheelhouse: a folder with every wheel that the learners' machines need, and an installation from nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import bootstrap
import pytest
import wheelhouse
from bootstrap import SetupError

ANY = "py3-none-any"


def add_wheel(folder: Path, name: str, version: str, *asks: str, tag: str = ANY) -> Path:
    """Make a wheel that holds nothing but its metadata."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    metadata = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {ask}" for ask in asks),
    ]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}-{version}.dist-info/METADATA", "\n".join(metadata) + "\n\n")
        archive.writestr(f"{name}-{version}.dist-info/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
    return path


# --- what it takes


def test_pip_fetches_what_uv_works_out_for_that_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pins hold for every machine; a wheel for another one would not be found where it is needed.

    soupsieve has one pin for Pythons before 3.11.5 and another one for later ones.
    """
    asked: dict[str, list[str]] = {}

    def run(command: list[str], **arguments: Any) -> subprocess.CompletedProcess[str]:
        python = next(each.partition("=")[2] for each in command if each.startswith("--python-version="))
        newest = "4.1.1" if python == "3.12.99" else "2.10"
        if "uv" in command:
            assert "torch==2.14.1" in arguments["input"]
            assert "-e ." not in arguments["input"]
            return subprocess.CompletedProcess(command, 0, f"torch==2.14.1\nsoupsieve=={newest}\n")
        (listed,) = (each.partition("=")[2] for each in command if each.startswith("--requirement="))
        asked[python] = Path(listed).read_text(encoding="utf-8").split()
        add_wheel(tmp_path, "torch", "2.14.1", tag="cp312-cp312-macosx_14_0_arm64")
        assert {"--no-deps", "--only-binary=:all:", "--platform=macosx_14_0_arm64"} <= set(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(wheelhouse, "add_own_wheels", lambda folder: add_wheel(folder, "ipu_course", "1.0.0"))
    assert wheelhouse.main([str(tmp_path), "--platform=macos-arm64", "--python-version=3.12"]) == 0
    assert asked == {
        "3.12": ["torch==2.14.1", "soupsieve==2.10"],
        "3.12.99": ["torch==2.14.1", "soupsieve==4.1.1"],
    }
    assert (tmp_path / "ipu_course-1.0.0-py3-none-any.whl").exists()


def test_pip_finds_the_course_and_the_model_in_the_folder_by_their_names(tmp_path: Path) -> None:
    wheelhouse.add_own_wheels(tmp_path)
    sources = bootstrap.pip_sources(tmp_path)
    command = [sys.executable, "-m", "pip", "download", *sources, "--no-deps", "--dest", str(tmp_path / "out")]
    subprocess.run([*command, "ipu-course[model]", "ipu-model"], check=True, stdout=subprocess.DEVNULL)
    found = {wheel.name for wheel in (tmp_path / "out").iterdir()}
    assert found == {wheel.name for wheel in tmp_path.glob("*.whl")}
    assert {name.partition("-")[0] for name in found} == {"ipu_course", "ipu_model"}


def test_a_failed_step_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(command: list[str], **arguments: Any) -> None:
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(subprocess, "run", run)
    assert wheelhouse.main(["--platform=linux-x86_64"]) == 1
    assert capsys.readouterr().err == "wheelhouse: uv failed; what it said stands above\n"


# --- installing from it


def test_pip_looks_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_wheel(tmp_path / "my wheels", "a", "1")
    monkeypatch.setenv("WHEELHOUSE", "my wheels")
    folder = bootstrap.chosen_wheelhouse(tmp_path)
    assert folder == tmp_path / "my wheels"
    assert bootstrap.pip_sources(folder) == ["--no-index", "--find-links", str(tmp_path / "my wheels")]


@pytest.mark.parametrize("value", ["", " "])
def test_without_a_wheelhouse_pip_looks_where_it_always_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("WHEELHOUSE", value)
    assert bootstrap.chosen_wheelhouse(tmp_path) is None
    assert bootstrap.pip_sources(None) == []


def test_an_empty_wheelhouse_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHEELHOUSE", str(tmp_path))
    with pytest.raises(SetupError, match="`make wheelhouse` fills a folder"):
        bootstrap.bring_up_to_date(bootstrap.ROOT, tmp_path / ".venv")
    assert not (tmp_path / ".venv").exists()


def test_a_real_pip_installs_from_it_with_a_dead_index(tmp_path: Path) -> None:
    """The index is a port on this machine where nothing listens."""
    add_wheel(tmp_path / "wheels", "course_test_a", "1", "course-test-b")
    add_wheel(tmp_path / "wheels", "course_test_b", "1")
    sources = bootstrap.pip_sources(tmp_path / "wheels")
    command = [sys.executable, "-m", "pip", "download", *sources, "--dest", str(tmp_path / "out"), "course-test-a"]
    environment = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": "/dev/null"}
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    assert len(list((tmp_path / "out").glob("*.whl"))) == 2
