"""The conditions of `make nbval-conditions` are what they say: no network, nothing to write to, a limit of time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nbval_conditions
import pytest
from nbval_conditions import Condition, Outcome, offline, read_only, record, search_path

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the conditions use Linux's namespaces and capabilities"
)

# 192.0.2.1 is an address for documentation: nobody has it.
REACH = """
import socket
listening = socket.create_server(("127.0.0.1", 0))
socket.socket().connect(listening.getsockname())
print("reached itself")
for attempt in (lambda: socket.socket().connect(("192.0.2.1", 80)), lambda: socket.getaddrinfo("example.org", 80)):
    try:
        attempt()
    except OSError as problem:
        print(type(problem).__name__, problem)
"""
WRITE = """
import sys
for folder in sys.argv[1:]:
    try:
        open(folder + "/new file", "w")
    except OSError as problem:
        print(type(problem).__name__)
"""


def output_of(code: str, condition: Condition, *arguments: str) -> str:
    """Run Python code under a condition and return what it prints."""
    command = [*condition.prefix, sys.executable, "-c", code, *arguments]
    environment = {**os.environ, **condition.environment}
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def test_the_times_of_some_notebooks_alone_are_not_recorded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file has one machine for all notebooks, and the times of the others would be lost."""
    monkeypatch.setattr(sys, "argv", ["nbval_conditions.py", "02", "--record"])
    with pytest.raises(SystemExit, match="2"):
        nbval_conditions.main()
    assert "--record writes the seconds of all notebooks" in capsys.readouterr().err


def test_sockets_are_refused_but_for_this_machines_own(project: Path) -> None:
    refused = Condition("refused", [], environment={"PYTHONPATH": search_path(project / "tools" / "offline")})
    itself, address, name = output_of(REACH, refused).splitlines()
    assert itself == "reached itself"
    assert "no network in this test, and so no connection to ('192.0.2.1', 80)" in address
    assert "no network in this test, and so no address of example.org" in name


def test_worker_processes_are_cut_off_too(project: Path) -> None:
    refused = Condition("refused", [], environment={"PYTHONPATH": search_path(project / "tools" / "offline")})
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {REACH!r}], check=True)"
    assert output_of(code, refused).count("no network in this test") == 2


def test_offline_reaches_this_machine_only() -> None:
    """In a network namespace where the system allows it, or else by refusing sockets."""
    lines = output_of(REACH, offline([])).splitlines()
    assert lines[0] == "reached itself"
    assert len(lines) == 3


def test_a_read_only_clone_and_home_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "project"
    (root / "notebooks").mkdir(parents=True)
    (root / "notebooks" / "00_start.ipynb").write_text("{}")
    monkeypatch.setattr(nbval_conditions, "ROOT", root)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    condition = read_only(["notebooks/00_start.ipynb"], scratch)
    assert (condition.folder / "notebooks" / "00_start.ipynb").exists()
    folders = [str(condition.folder), str(condition.folder / "notebooks"), condition.environment["HOME"]]
    assert output_of(WRITE, condition, *folders).split() == ["PermissionError"] * 3


@pytest.mark.parametrize(
    ("passed", "seconds", "verdict"),
    [(True, 59.9, "ok"), (True, 60.1, "TOO SLOW, 60 s at most"), (False, 3.0, "FAILED")],
)
def test_a_notebook_has_a_minute(passed: bool, seconds: float, verdict: str) -> None:
    (alone,) = nbval_conditions.each_alone([nbval_conditions.NOTEBOOKS / "00_start.ipynb"])
    assert Outcome(alone, passed, seconds, "").verdict == verdict


def test_the_record_says_how_long_each_notebook_took_and_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nbval_conditions, "NOTEBOOKS", tmp_path)
    record([Outcome(Condition("00_start", []), True, 12.34, ""), Outcome(Condition("01_next", []), True, 9.0, "")])
    written = json.loads((tmp_path / "measured.json").read_text(encoding="utf-8"))
    assert written["seconds"] == {"00_start": 12.3, "01_next": 9.0}
    assert f"{os.cpu_count()} cores" in written["machine"]
    assert "pytest --nbval notebooks/" in written["command"]
