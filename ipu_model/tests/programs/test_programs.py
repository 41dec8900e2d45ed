"""Whole programs, as users of PopTorch write them, run to the end and check their own results.

Every file in a subfolder is such a program. It was written before anybody ran it on this package. It checks what it
computed, and exits with 0 only if that is right. Comment lines at its top say what it needs:

* ``# needs: transformers, optimum.graphcore``: packages that requirements.txt does not name; without them
  the program is skipped. `make companions` has them, and runs these programs only.
* ``# environment: NAME=value``: environment variables to set.
* ``# run with: poprun --num-instances 2 ...``: how to start it.

first_run.csv records the outcome of each program's first run, before the package was changed to make it pass.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_PATIENCE_IN_S = 180.0
_WITH_COMPANIONS = bool(os.environ.get("IPU_MODEL_COMPANIONS"))
# Programs that are known to fail, with the reason. A listed program must fail; remove it when it passes.
_EXPECTED_FAILURES: Mapping[str, str] = {}

# Programs are forked from a process that has imported torch: that import takes longer than most of the programs.
# On macOS, whose libraries do not bear a fork, each is started anew.
_FORK = sys.platform == "linux"
_fork_server = multiprocessing.get_context("forkserver")
_fork_server.set_forkserver_preload(["__main__", "torch", "torch.utils.data", "poptorch"])


@dataclass(frozen=True)
class Program:
    """A program and what the comments at its top ask for."""

    path: Path
    needs: tuple[str, ...]
    environment: Mapping[str, str]
    poprun: tuple[str, ...] | None

    @property
    def name(self) -> str:
        return f"{self.path.parent.name}/{self.path.stem}"

    def missing(self) -> list[str]:
        """The packages it needs that are not installed."""
        return [name for name in self.needs if not _is_installed(name)]


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:  # the package that a dotted name is in
        return False


def _read(path: Path) -> Program:
    text = path.read_text(encoding="utf-8")

    def asked(what: str, separator: str) -> tuple[str, ...] | None:
        found = re.search(rf"^# {what}:? (.+)$", text, re.MULTILINE)
        return None if found is None else tuple(re.split(separator, found.group(1).strip()))

    environment = dict(setting.split("=", 1) for setting in asked("environment", r"\s+") or ())
    return Program(path, asked("needs", r",\s*") or (), environment, asked("run with: poprun", r"\s+"))


def _cases() -> list[object]:
    cases = []
    for path in sorted(_HERE.glob("*/*.py")):
        program = _read(path)
        if _WITH_COMPANIONS and not program.needs:
            continue
        marks = []
        if program.missing() and not _WITH_COMPANIONS:
            marks.append(pytest.mark.skip(reason=f"needs {', '.join(program.missing())}"))
        if program.name in _EXPECTED_FAILURES:
            marks.append(pytest.mark.xfail(reason=_EXPECTED_FAILURES[program.name], strict=True))
        cases.append(pytest.param(program, id=program.name, marks=marks))
    return cases


def _environment(program: Program) -> dict[str, str]:
    return {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", **program.environment}


def _become(program: Program, folder: Path, log: Path) -> None:
    """Run the program in this process, as ``python program.py`` in a folder of its own would."""
    os.setpgid(0, 0)
    output = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(output, sys.stdout.fileno())
    os.dup2(output, sys.stderr.fileno())
    os.environ.update(_environment(program))
    os.chdir(folder)
    # The process has inherited the fork server's method of starting its own children: take the platform's again.
    multiprocessing.set_start_method(multiprocessing.get_all_start_methods()[0], force=True)
    sys.argv = [str(program.path)]
    sys.path[:] = [str(program.path.parent), *(entry for entry in sys.path if entry != str(_HERE))]
    runpy.run_path(str(program.path), run_name="__main__")


def _status_of_fork(program: Program, folder: Path, log: Path) -> int | None:
    process = _fork_server.Process(target=_become, args=(program, folder, log))
    process.start()
    process.join(_PATIENCE_IN_S)
    if process.exitcode is None and process.pid is not None:
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
        return None
    return process.exitcode


def _status_of_command(program: Program, folder: Path, log: Path) -> int | None:
    command = [sys.executable, str(program.path)]
    if program.poprun is not None:
        start = "import sys; from popdist.run.command import main; sys.exit(main())"
        command = [sys.executable, "-c", start, *program.poprun, *command]
    with log.open("wb") as output:
        try:
            return subprocess.run(
                command,
                cwd=folder,
                env={**os.environ, **_environment(program)},
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=_PATIENCE_IN_S,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            return None


@pytest.mark.parametrize("program", _cases())
def test_the_program_exits_with_success(program: Program, tmp_path: Path) -> None:
    log = tmp_path / "output.txt"
    folder = tmp_path / "run"
    folder.mkdir()
    run = _status_of_fork if _FORK and program.poprun is None else _status_of_command
    status = run(program, folder, log)
    if status != 0:
        ended = f"did not end within {_PATIENCE_IN_S:.0f} s" if status is None else f"exited with {status}"
        pytest.fail(f"{program.name} {ended}:\n{log.read_text(errors='replace')[-8000:]}", pytrace=False)
