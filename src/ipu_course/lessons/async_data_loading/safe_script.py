"""Scripts run beside the notebook, with a time limit: for showing what goes wrong without going wrong."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Mapping

LIMIT_SECONDS = 90.0
LIMIT_WORDS = "stopped at the time limit"


@dataclass(frozen=True)
class ScriptEnd:
    """How a script ended: what it printed, the last line of its errors, and whether it ended by itself.

    ``child_error`` is the first sentence of Python's own error about starting processes, if there was one.
    """

    printed: str
    error: str
    succeeded: bool
    stopped: bool = False
    child_error: str = ""

    @property
    def verdict(self) -> str:
        """The end in a few lines."""
        if self.stopped:
            return LIMIT_WORDS
        if self.succeeded:
            return f"works, and prints: {self.printed}"
        child = f"\n  in the new process: {self.child_error}" if self.child_error else ""
        return f"fails{child}\n  {self.error}"


def run_scripts(
    files: Mapping[str, str], sessions: Mapping[str, str] | None = None, limit_seconds: float = LIMIT_SECONDS
) -> dict[str, ScriptEnd]:
    """Run all scripts at the same time and give how each ended, by name.

    ``files`` run as files, in a folder that is removed afterwards; ``sessions`` like a notebook's cells, in a
    main module that is no file. Whatever happens, an interrupt included, none of them outlives this call.
    """
    with ExitStack() as cleanup:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory()))
        running: dict[str, subprocess.Popen[str]] = {}
        cleanup.callback(_end_all, running)
        for number, (name, text) in enumerate(files.items()):
            path = folder / f"script_{number}.py"
            path.write_text(text, encoding="utf-8")
            running[name] = _start([str(path)])
        for name, text in (sessions or {}).items():
            running[name] = _start(["-c", text])
        limit = time.monotonic() + limit_seconds
        return {name: _end(process, limit) for name, process in running.items()}


def _start(arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def _end(process: subprocess.Popen[str], limit: float) -> ScriptEnd:
    try:
        printed, errors = process.communicate(timeout=max(0.1, limit - time.monotonic()))
    except subprocess.TimeoutExpired:
        return ScriptEnd("", "", succeeded=False, stopped=True)
    child = start_error(errors)
    return ScriptEnd(printed.strip(), last_error(errors), process.returncode == 0, child_error=child)


def _end_all(running: Mapping[str, subprocess.Popen[str]]) -> None:
    for process in running.values():
        process.kill()  # without effect on what has ended; loader processes end with their program
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def last_error(text: str) -> str:
    """The first line of the message that a traceback ends with, without the module and the code of the error."""
    lines = [line for line in text.splitlines() if line.strip()]
    message = list(takewhile(lambda line: not line[0].isspace(), reversed(lines)))
    first = message[-1].strip() if message else ""
    return re.sub(r"^[\w.]*?(\w+): (?:'\w+': )?", r"\1: ", first)


def start_error(text: str) -> str:
    """The first sentence of Python's error about a process that is started too early; empty without one."""
    found = re.search(r"^(RuntimeError): *\n((?:[ \t]+\S.*\n)+)", text, re.M)
    return f"{found[1]}: {' '.join(found[2].split())}" if found else ""
