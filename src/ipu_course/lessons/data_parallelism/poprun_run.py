"""Run poprun from a notebook, and collect what each instance printed and what the first one saved."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Mapping, Sequence

import torch
from torch import Tensor

__all__ = ["NO_POPRUN", "PoprunEnd", "run_poprun"]

LIMIT_SECONDS = 120.0
END_SECONDS = 25.0  # poprun needs a moment to end its instances
NO_POPRUN = "There is no poprun here. Graphcore's SDK has it, and so has the course's PopTorch."
TAGGED = re.compile(r"^\[1,(\d+)\]<stdout>: ?(.*)$")


@dataclass(frozen=True)
class PoprunEnd:
    """How a run of poprun ended: the ``lines`` of each instance, and a ``problem``, which is empty if there was none.

    ``weights`` are the tensors that the first instance saved, or ``None`` when it saved nothing.
    """

    lines: Mapping[int, Sequence[str]] = field(default_factory=dict)
    weights: Sequence[Tensor] | None = None
    problem: str = ""

    @property
    def facts(self) -> dict[int, dict[str, str]]:
        """The value of each fact, by instance and name, from lines such as "calls: 16"."""
        return {instance: dict(_fact(line) for line in lines) for instance, lines in sorted(self.lines.items())}

    @property
    def rows(self) -> list[dict[str, object]]:
        """One row for each fact, in the order of the program, with the value of each instance."""
        facts = self.facts
        names = list(dict.fromkeys(name for each in facts.values() for name in each))
        return [
            {"fact": name, **{f"instance {instance}": each.get(name, "") for instance, each in facts.items()}}
            for name in names
        ]


def run_poprun(command: str, limit_seconds: float = LIMIT_SECONDS) -> PoprunEnd:
    """Run ``command``, which begins with poprun and ends with a program that knows ``--save FILE``.

    The words "poprun" and "python" stand for those of this notebook's environment, even if no shell has activated it.
    Every process ends before this returns, and it never raises: ``problem`` says what went wrong.
    """
    launcher = _launcher()
    if launcher is None:
        return PoprunEnd(problem=NO_POPRUN)
    words = [sys.executable if word == "python" else word for word in shlex.split(command)[1:]]
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "weights.pt"
        printed, problem = _run([*launcher, *words, "--save", str(saved)], limit_seconds)
        weights = None
        try:
            weights = torch.load(saved, weights_only=True) if saved.exists() else None
        except Exception as error:  # whatever the program has put there
            problem = problem or f"What the program saved cannot be read: {error}"
    return PoprunEnd(lines_by_instance(printed), weights, problem)


def _launcher() -> list[str] | None:
    """Return the command of poprun: the course's module, or else the SDK's program beside Python or on the path."""
    if find_spec("popdist") is not None and find_spec("popdist.run") is not None:
        return [sys.executable, "-m", "popdist.run"]
    found = shutil.which("poprun", path=str(Path(sys.executable).parent)) or shutil.which("poprun")
    return None if found is None else [found]


def _run(command: Sequence[str], limit_seconds: float) -> tuple[str, str]:
    """Return what the command printed, and its error message if it failed."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
    ) as process:
        try:
            printed, errors = process.communicate(timeout=limit_seconds)
        except subprocess.TimeoutExpired:
            return "", f"poprun was stopped at the time limit of {limit_seconds:g} s"
        finally:
            _end(process)
    return printed, "" if process.returncode == 0 else last_word(errors) or f"exit code {process.returncode}"


def last_word(errors: str) -> str:
    """Return the launcher's last line without those of its instances, or else the very last line."""
    lines = [line for line in errors.splitlines() if line.strip()]
    own = [line for line in lines if not line.startswith("[1,")]
    return (own or lines or [""])[-1]


def _end(process: subprocess.Popen[str]) -> None:
    """End the process, also after an interrupt: poprun ends its instances when it is asked to."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def lines_by_instance(printed: str) -> dict[int, list[str]]:
    """Return the lines of each instance in their order; the order among instances is left to chance."""
    lines: dict[int, list[str]] = {}
    for line in printed.splitlines():
        tagged = TAGGED.match(line)
        if tagged:
            lines.setdefault(int(tagged[1]), []).append(tagged[2])
    return lines


def _fact(line: str) -> tuple[str, str]:
    name, _, value = line.partition(": ")
    return name, value
