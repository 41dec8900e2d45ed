"""Starts the probe in a process of its own, with a time limit, and turns what it says into findings."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Mapping, Sequence

from ipu_course.programs.doctor.finding import Finding, ok, problem
from ipu_course.programs.doctor.packages_check import INSTALL

PROBE = (sys.executable, "-m", "ipu_course.programs.doctor.probe")
SECONDS = 120.0
LAST_LINES = 3


@dataclass(frozen=True)
class Advice:
    """What a stage of the probe is for, and what helps when it fails."""

    why: str
    cure: str


_POPTORCH = "run `python -c 'import poptorch'` here and read its last line; with the SDK: enable it first"
_DATA = "git checkout data/, in the course's folder"
_LOADER = (
    "look at what limits processes: ulimit -u, a container's pids limit and its /dev/shm (docker: --shm-size=1g); "
    "lessons that load asynchronously need it, the others run without"
)
ADVICE = {
    "torch": Advice("every lesson needs it", INSTALL),
    "torchvision": Advice("the models of the profiles are torchvision's", INSTALL),
    "poptorch": Advice("every lesson needs it", _POPTORCH),
    "engine": Advice("the modelled figures come from it", INSTALL),
    "data": Advice("the lessons train on these files", _DATA),
    "loader": Advice("asynchronous data loading works with such processes", _LOADER),
}


@dataclass(frozen=True)
class ProbeResult:
    """What the probe said: by stage, whether it worked and a text; ``ending``: why it said no more, if it did not."""

    stages: Mapping[str, tuple[bool, str]]
    ending: str = ""


class Probe:
    """A probe at work. ``result`` waits for it until ``seconds`` after its start, then ends it."""

    def __init__(self, command: Sequence[str] = PROBE, seconds: float = SECONDS) -> None:
        self._seconds, self._deadline = seconds, time.monotonic() + seconds
        # A session of its own, so that workers which it started can be ended with it.
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
            errors="replace",
            start_new_session=True,
        )

    def result(self) -> ProbeResult:
        """What it said; never later than the time limit and a few seconds."""
        try:
            said, errors = self._process.communicate(timeout=max(0.1, self._deadline - time.monotonic()))
            code = self._process.returncode
            ending = "" if code == 0 else _how_it_ended(code, errors)
        except subprocess.TimeoutExpired:
            self.stop()
            said, errors = self._process.communicate()
            ending = f"did not end within {self._seconds:.0f} seconds"
        return ProbeResult(read_lines(said), ending)

    def stop(self) -> None:
        """End the probe and all that it started."""
        with contextlib.suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()


def read_lines(said: str) -> dict[str, tuple[bool, str]]:
    """The stages that the probe told about; what else stands between its lines is ignored."""
    stages = {}
    for line in said.splitlines():
        try:
            entry = json.loads(line)
            stages[str(entry["stage"])] = (bool(entry["works"]), str(entry["text"]))
        except (ValueError, KeyError, TypeError):
            continue
    return stages


def judge_stage(stage: str, result: ProbeResult) -> Finding:
    """The finding for one stage: it worked, it failed, or the probe ended before it told."""
    advice = ADVICE[stage]
    if stage in result.stages:
        works, text = result.stages[stage]
        return ok(text) if works else problem(text, advice.why, advice.cure)
    untold = [name for name in ADVICE if name not in result.stages]
    if stage == untold[0]:
        return problem(f"the test process {result.ending or 'ended without a word'}", advice.why, advice.cure)
    return problem(f"not tried: the test process ended at {untold[0]}", advice.why, f"first cure {untold[0]}")


def _how_it_ended(code: int, errors: str) -> str:
    if code < 0:
        return f"was ended by signal {-code} (4: this processor lacks an instruction; 9: probably out of memory)"
    last = " / ".join(line.strip() for line in errors.strip().splitlines()[-LAST_LINES:])
    return f"ended with code {code}: {last}"
