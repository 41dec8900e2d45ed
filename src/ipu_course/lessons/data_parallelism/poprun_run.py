"""A run of poprun beside the notebook: what each instance printed, and the weights that the first one saved."""

from __future__ import annotations

import ast
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

__all__ = ["NO_POPRUN", "PoprunEnd", "run_poprun", "source_of"]

LIMIT_SECONDS = 120.0
END_SECONDS = 25.0  # poprun needs a moment to end its instances
NO_POPRUN = "There is no poprun here. Graphcore's SDK has it, and so has the course's PopTorch."
TAGGED = re.compile(r"^\[1,(\d+)\]<stdout>: ?(.*)$")


@dataclass(frozen=True)
class PoprunEnd:
    """``lines`` that each instance printed, by its number; ``problem`` is empty when all went well.

    ``weights`` are what the first instance saved; ``None`` when it saved nothing.
    """

    lines: Mapping[int, Sequence[str]] = field(default_factory=dict)
    weights: Sequence[Tensor] | None = None
    problem: str = ""

    @property
    def rows(self) -> list[dict[str, object]]:
        """One row for each fact, in the order of the program, with the value of each instance."""
        facts = {instance: dict(_fact(line) for line in lines) for instance, lines in sorted(self.lines.items())}
        names = list(dict.fromkeys(name for each in facts.values() for name in each))
        return [
            {"fact": name, **{f"instance {instance}": each.get(name, "") for instance, each in facts.items()}}
            for name in names
        ]


def run_poprun(command: str, limit_seconds: float = LIMIT_SECONDS) -> PoprunEnd:
    """Run ``command``, which begins with poprun and ends with a program that knows ``--save FILE``.

    "poprun" and "python" are those of this notebook's environment, whether or not it is active in a shell. Nothing
    outlives this call, and it never raises: ``problem`` says what went wrong.
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


def source_of(module: str, function: str) -> str:
    """The source of a function, read without importing its module: what it imports may not be here.

    Raises ``ValueError`` when there is no such function.
    """
    found = find_spec(module)
    if found is None or found.origin is None:
        raise ValueError(f"there is no module {module}")
    text = Path(found.origin).read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return ast.get_source_segment(text, node) or ""
    raise ValueError(f"{module} has no function {function}")


def _launcher() -> list[str] | None:
    """What starts poprun: the course's as a module, else the SDK's, beside Python or on the path."""
    if find_spec("popdist") is not None and find_spec("popdist.run") is not None:
        return [sys.executable, "-m", "popdist.run"]
    found = shutil.which("poprun", path=str(Path(sys.executable).parent)) or shutil.which("poprun")
    return None if found is None else [found]


def _run(command: Sequence[str], limit_seconds: float) -> tuple[str, str]:
    """What the command printed, and what it says when it failed."""
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
            return "", f"stopped at the time limit of {limit_seconds:g} s"
        finally:
            _end(process)
    return printed, "" if process.returncode == 0 else last_word(errors) or f"exit code {process.returncode}"


def last_word(errors: str) -> str:
    """What the launcher says at its end, without the tagged lines of its instances; else the very last line."""
    lines = [line for line in errors.splitlines() if line.strip()]
    own = [line for line in lines if not line.startswith("[1,")]
    return (own or lines or [""])[-1]


def _end(process: subprocess.Popen[str]) -> None:
    """End it, also after an interrupt: poprun ends its instances when it is asked to."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def lines_by_instance(printed: str) -> dict[int, list[str]]:
    """The lines of each instance in its own order; how instances take turns on the screen is left to chance."""
    lines: dict[int, list[str]] = {}
    for line in printed.splitlines():
        tagged = TAGGED.match(line)
        if tagged:
            lines.setdefault(int(tagged[1]), []).append(tagged[2])
    return lines


def _fact(line: str) -> tuple[str, str]:
    name, _, value = line.partition(": ")
    return name, value
