"""The JupyterHub of examples/hub: its settings, and what happens before a learner's server starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from traitlets.config import Config, PyFileConfigLoader

HUB = Path(__file__).resolve().parents[1] / "examples" / "hub"


def load(name: str) -> Config:
    """Read a configuration as JupyterHub does, which may be started in any folder."""
    return PyFileConfigLoader(str(HUB / name), path="").load_config()


def test_each_learner_has_a_limit_and_no_more_threads_than_cores() -> None:
    spawner = load("jupyterhub_config.py").Spawner
    assert int(spawner.environment["OMP_NUM_THREADS"]) == max(1, int(spawner.cpu_limit))
    assert spawner.mem_limit.endswith("G")


def test_the_server_is_started_by_the_script_beside_the_configuration() -> None:
    shell, script, programs = load("jupyterhub_config.py").Spawner.cmd
    assert (shell, Path(script)) == ("/bin/sh", HUB / "start_server.sh")
    assert Path(script).is_file()
    assert Path(programs).name == "bin"


def test_the_trial_is_the_same_hub_for_this_machine_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("IPU_COURSE_ENVIRONMENT", str(tmp_path))
    monkeypatch.setenv("IPU_COURSE_TRIAL_PASSWORD", "secret")
    trial, institute = load("trial_config.py"), load("jupyterhub_config.py")
    assert trial.JupyterHub.bind_url == "http://127.0.0.1:8000"
    assert trial.Spawner.cmd == [*institute.Spawner.cmd[:2], str(tmp_path / "bin")]
    assert trial.Spawner.args[: len(institute.Spawner.args)] == institute.Spawner.args
    assert ("--allow-root" in trial.Spawner.args) == (os.geteuid() == 0)
    for name in ("environment", "default_url", "cpu_limit", "mem_limit"):
        assert trial.Spawner[name] == institute.Spawner[name]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with the course's real command, and a server that only prints what it was given."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, command in (
        ("ipu-course", f'exec "{sys.executable}" -m ipu_course "$@"'),
        ("jupyterhub-singleuser", "printf '%s\\n' \"$@\""),
    ):
        (folder / name).write_text(f"#!/bin/sh\n{command}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    return folder


def start(programs: Path, home: Path) -> subprocess.CompletedProcess[str]:
    """Start the server of a learner with this home."""
    environment = {**os.environ, "HOME": str(home)}
    command = ["/bin/sh", str(HUB / "start_server.sh"), str(programs), "--port=1", "--two words"]
    return subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True)


def test_a_learner_finds_a_copy_of_the_lessons_at_home_and_keeps_it(programs: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    assert start(programs, home).stdout.splitlines()[-2:] == ["--port=1", "--two words"]
    lesson = home / "my_course" / "00_start_here.ipynb"
    lesson.write_text(lesson.read_text(encoding="utf-8").replace("Start here", "Mine"), encoding="utf-8")
    mine = lesson.read_bytes()
    assert start(programs, home).stdout.splitlines() == ["--port=1", "--two words"]
    assert lesson.read_bytes() == mine


def test_a_server_starts_though_the_copy_cannot_be_made(programs: Path, tmp_path: Path) -> None:
    (tmp_path / "my_course").write_text("a file where the folder should be", encoding="utf-8")
    done = start(programs, tmp_path)
    assert done.stdout.splitlines() == ["--port=1", "--two words"]
    assert done.stderr.splitlines()[-1] == "The lessons were not copied."
