"""`make lab` and `make test` on machines that lack something: one clear line, and a second try that works."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import bootstrap
import pytest
from bootstrap import SetupError
from packaging.requirements import Requirement

SETUP_FILES = (*bootstrap.INPUTS, "tools/setup.sh")


@pytest.fixture
def clone(tmp_path: Path, project: Path) -> Path:
    """A copy of the files that the set-up needs, in a folder with a space in its name."""
    folder = tmp_path / "my clone"
    for name in SETUP_FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(project / name, folder / name)
    return folder


def run_setup(clone: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHON"}
    return subprocess.run(
        ["sh", str(clone / "tools" / "setup.sh")],
        env={**inherited, **environment},
        cwd=clone.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )


def fake_python(folder: Path, minor: int) -> Path:
    """Return a program that answers as a Python 3.`minor` would when asked for its version."""
    folder.mkdir(exist_ok=True)
    program = folder / f"python3.{minor}"
    program.write_text(f'#!/bin/sh\ncase "$2" in *sys.exit*) exit 1;; esac\necho 3.{minor}.1\n', encoding="utf-8")
    program.chmod(0o755)
    return program


# --- finding a Python


def test_an_old_python_is_named_with_what_is_needed(clone: Path, tmp_path: Path) -> None:
    done = run_setup(clone, PYTHON=str(fake_python(tmp_path / "bin", 8)))
    assert done.returncode == 1
    assert done.stdout.count("\n") == 1
    assert "is Python 3.8.1, and the course needs 3.10 to 3.14" in done.stdout


def test_only_unsupported_pythons_on_the_path(clone: Path, tmp_path: Path) -> None:
    python = fake_python(tmp_path / "bin", 9)
    python.rename(python.with_name("python3"))
    done = run_setup(clone, PATH=f"{python.parent}:{system_tools(tmp_path)}")
    assert done.returncode == 1
    assert done.stdout.startswith("setup: found only Python 3.9.1, and the course needs 3.10 to 3.14")


def test_no_python_at_all(clone: Path, tmp_path: Path) -> None:
    done = run_setup(clone, PATH=str(system_tools(tmp_path)))
    assert done.returncode == 1
    assert done.stdout.startswith("setup: found no Python: install Python 3.10 to 3.14")


def test_a_python_that_does_not_run(clone: Path) -> None:
    done = run_setup(clone, PYTHON="/nowhere/python3")
    assert done.returncode == 1
    assert done.stdout == "setup: PYTHON=/nowhere/python3 does not run as a Python interpreter\n"


def system_tools(tmp_path: Path) -> Path:
    """Return a folder with the shell and `dirname`, but no Python."""
    folder = tmp_path / "tools-only"
    folder.mkdir()
    for name in ("sh", "dirname"):
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    return folder


# --- without a network on purpose


def test_offline_takes_a_finished_venv_as_it_is(clone: Path) -> None:
    finished_venv(clone, inputs="older")
    done = run_setup(clone, OFFLINE="1")
    assert (done.returncode, done.stdout) == (0, "")


def test_offline_needs_a_finished_venv(clone: Path) -> None:
    done = run_setup(clone, OFFLINE="1")
    assert done.returncode == 1
    assert "there is no finished one" in done.stdout


# --- what went wrong


def test_no_venv_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ensurepip", None)  # Debian without python3-venv
    with pytest.raises(SetupError, match=r"has no venv module \(Debian, Ubuntu: apt-get install python3"):
        bootstrap.make_venv(tmp_path / ".venv")


def test_without_a_network_the_last_line_says_that_it_failed(clone: Path) -> None:
    """The index is a port on this machine where nothing listens: pip says what is wrong with it."""
    offline = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "1", "PIP_NO_CACHE_DIR": "1"}
    unconfigured = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}
    done = run_setup(clone, PYTHON=sys.executable, **offline, **unconfigured)
    assert done.returncode == 1
    assert "Connection refused" in done.stdout
    assert "setup: a step of the installation failed; what it said stands above" in done.stdout.splitlines()
    assert (clone / ".venv" / ".setup-unfinished").exists()


def test_a_step_that_the_system_ended_is_told(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"stopped by signal 9 \(9: probably out of memory\)"):
        bootstrap.run([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])


# --- when .venv is left alone, updated, or made anew


def finished_venv(clone: Path, **changes: str) -> Path:
    """Make something that looks like a finished .venv of this Python, with changes to its stamp."""
    venv = clone / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys.executable)
    stamp = {**bootstrap.wanted_stamp(clone), **changes}
    (venv / ".setup-stamp").write_text(json.dumps(stamp), encoding="utf-8")
    return venv


@pytest.fixture
def installs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record what would be done instead of doing it."""
    done: list[str] = []

    def make(venv: Path) -> None:
        done.append("make")
        shutil.rmtree(venv, ignore_errors=True)
        venv.mkdir()
        (venv / ".setup-unfinished").touch()

    monkeypatch.setattr(bootstrap, "make_venv", make)
    monkeypatch.setattr(bootstrap, "install", lambda root, venv, wheelhouse: done.append("install"))
    monkeypatch.setattr(bootstrap, "try_update", lambda venv, wheelhouse: None)
    return done


def test_an_up_to_date_venv_is_left_alone(clone: Path, installs: list[str]) -> None:
    bootstrap.bring_up_to_date(clone, finished_venv(clone))
    assert installs == []


def test_the_second_run_has_nothing_to_do(clone: Path, installs: list[str]) -> None:
    bootstrap.bring_up_to_date(clone, clone / ".venv")
    bootstrap.bring_up_to_date(clone, clone / ".venv")
    assert installs == ["make", "install"]


@pytest.mark.parametrize("name", ["requirements.txt", "pyproject.toml", "ipu_model/pyproject.toml"])
def test_changed_requirements_update_in_place(clone: Path, installs: list[str], name: str) -> None:
    venv = finished_venv(clone)
    with (clone / name).open("a", encoding="utf-8") as file:
        file.write("\n# changed\n")
    bootstrap.bring_up_to_date(clone, venv)
    assert installs == ["install"]


@pytest.mark.parametrize("change", [{"python": "3.9.1"}, {"root": "/elsewhere"}, {"platform": "other"}])
def test_another_python_or_a_moved_folder_makes_it_anew(
    clone: Path, installs: list[str], change: dict[str, str]
) -> None:
    bootstrap.bring_up_to_date(clone, finished_venv(clone, **change))
    assert installs == ["make", "install"]


def test_an_interrupted_installation_is_made_anew(clone: Path, installs: list[str]) -> None:
    venv = finished_venv(clone)
    (venv / ".setup-unfinished").touch()
    bootstrap.bring_up_to_date(clone, venv)
    assert installs == ["make", "install"]


@pytest.mark.parametrize(("failing", "kept"), [("--dry-run", True), ("--no-build-isolation", False)])
def test_a_failed_update_keeps_the_venv_only_if_nothing_changed(
    clone: Path, monkeypatch: pytest.MonkeyPatch, failing: str, kept: bool
) -> None:
    """A room that lost its network has yesterday's environment; a half-unpacked one is no use."""

    def step(command: list[str]) -> None:
        if failing in command and ("--dry-run" in command) == kept:
            raise SetupError("failed")

    venv = finished_venv(clone, inputs="older")
    monkeypatch.setattr(bootstrap, "run", step)
    with pytest.raises(SetupError, match="make OFFLINE=1 lab" if kept else "failed$"):
        bootstrap.bring_up_to_date(clone, venv)
    assert bootstrap.must_be_made_anew(venv, bootstrap.wanted_stamp(clone)) is not kept


def test_somebody_elses_venv_is_not_touched(clone: Path, installs: list[str]) -> None:
    venv = finished_venv(clone)
    (venv / ".setup-stamp").unlink()
    with pytest.raises(SetupError, match="was not made by this Makefile"):
        bootstrap.bring_up_to_date(clone, venv)
    assert installs == []


# --- the files themselves


def test_every_requirement_is_pinned_and_torch_brings_its_own_cuda_packages(project: Path) -> None:
    lines = (project / "requirements.txt").read_text(encoding="utf-8").splitlines()
    editable = [line for line in lines if line.startswith("-e")]
    pins = [Requirement(line) for line in lines if line and not line.startswith(("#", "-e"))]
    assert editable == ["-e ./ipu_model", "-e ."]
    assert [str(pin) for pin in pins if not str(pin.specifier).startswith("==")] == []
    assert {"torch==2.14.1", "torchvision==0.29.1"} <= {str(pin) for pin in pins}
    assert [pin.name for pin in pins if pin.name.startswith(("nvidia", "cuda", "triton"))] == []


def test_an_sdk_machine_keeps_the_torch_of_its_sdk(project: Path) -> None:
    text = (project / "requirements-ipu.txt").read_text(encoding="utf-8")
    wanted = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert wanted == ["numpy<2  # the torch of SDK 3.4 was built against numpy 1", "-e .[lab]"]


def test_make_help_names_every_target(project: Path) -> None:
    done = subprocess.run(["make", "-C", str(project), "help"], stdout=subprocess.PIPE, text=True, check=True)
    listed = {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")}
    assert {"lab", "test", "notebooks", "lint", "bench", "clean", "help"} <= listed
