"""What may crash or hang is tried in a process of its own: the imports of the lessons, and one use of each thing.

`python -m ipu_course.programs.doctor.probe` prints one line of JSON for each stage that ended. When a stage ends the
process, or never ends, the missing line says which one it was.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Callable, Mapping, Sequence, Tuple

from ipu_course import engine
from ipu_course.course_files import bring_back
from ipu_course.programs.doctor.finding import INSTALL, CheckResult, Finding, ok, problem

COMMAND = (sys.executable, "-m", "ipu_course.programs.doctor.probe")
SECONDS = 120.0
LAST_LINES = 3

Answers = Mapping[str, Tuple[bool, str]]  # by stage: whether it worked, and a sentence


@dataclass(frozen=True)
class Stage:
    """Something that is tried: ``run`` returns a sentence or raises, and then ``why`` and ``cure`` say what follows."""

    check: str
    run: Callable[[], str]
    why: str
    cure: str


def import_torch() -> str:
    """Import torch, and compute something: that is where an old processor gives up."""
    float(import_module("torch").ones(2, 2).sum())
    return "torch can be imported, and it computes."


def import_torchvision() -> str:
    """Import torchvision."""
    import_module("torchvision")
    return "torchvision can be imported."


def import_poptorch() -> str:
    """Import poptorch, and see that it is more than an empty folder of that name."""
    if not hasattr(import_module("poptorch"), "trainingModel"):
        raise ImportError("poptorch has no trainingModel, so something else of that name was imported")
    return "poptorch can be imported."


def use_engine() -> str:
    """Model a small profile, where there is an IPU Model."""
    if not engine.is_available():
        return "There is no IPU Model here, so the lessons show measured results but no modelled ones."
    import torch

    import poptorch

    profile = engine.profile_module(torch.nn.Linear(8, 8), (torch.zeros(4, 8),), poptorch.Options())
    if profile is engine.NOT_MODELLED:
        raise RuntimeError("the engine gave no profile")
    return "The IPU Model has modelled a small profile."


def read_data() -> str:
    """Read the bundled data as the lessons do."""
    from ipu_course.datasets import mnist
    from ipu_course.ladder import published_ladder

    if not (len(mnist(train=False)) and published_ladder().steps):
        raise RuntimeError("the files contain no digits or no published steps")
    return "The digits and the published results can be read."


def use_loader() -> str:
    """Start an asynchronous loader with a worker process, take what it loads, and end it."""
    import torch
    from torch.utils.data import TensorDataset

    import poptorch

    rows = torch.arange(8, dtype=torch.float32)
    mode = poptorch.DataLoaderMode.Async
    loader = poptorch.DataLoader(poptorch.Options(), TensorDataset(rows), batch_size=4, mode=mode)
    try:
        total = sum(float(item[0].sum()) for item in loader)
    finally:
        loader.terminate()
    if total != float(rows.sum()):
        raise RuntimeError(f"the worker's items sum to {total}, not to {float(rows.sum())}")
    return "A worker process has started, loaded items, and ended."


_POPTORCH = "Run `python -c 'import poptorch'` here and read its last line. If you use the Poplar SDK, enable it first."
_LOADER = (
    "Check the limits on processes: ulimit -u, or a container's pids limit and its /dev/shm (docker: --shm-size=1g). "
    "Only lessons that load data asynchronously need such processes."
)
STAGES = (
    Stage("import torch", import_torch, "Every lesson needs torch.", INSTALL),
    Stage("import torchvision", import_torchvision, "The lessons profile models of torchvision.", INSTALL),
    Stage("import poptorch", import_poptorch, "Every lesson needs poptorch.", _POPTORCH),
    Stage("IPU Model", use_engine, "The IPU Model computes the modelled figures.", INSTALL),
    Stage("reading the data", read_data, "The lessons train on these files.", f"{bring_back('data/')}.".capitalize()),
    Stage("worker process", use_loader, "Asynchronous data loading uses such processes.", _LOADER),
)


def main() -> None:
    """Run the stages; a failed one does not keep the others from being tried."""
    for stage in STAGES:
        try:
            works, text = True, stage.run()
        except Exception as error:
            works, text = False, f"{type(error).__name__}: {error}"
        print(json.dumps([stage.check, works, text]), flush=True)


def probe(command: Sequence[str] = COMMAND, seconds: float = SECONDS) -> list[CheckResult]:
    """Run the stages in a process of its own, which ends after at most ``seconds``, and judge what it says."""
    with subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        errors="replace",
        start_new_session=True,  # so that workers which it started can be ended with it
    ) as process:
        try:
            said, errors = process.communicate(timeout=seconds)
            ending = _how_it_ended(process.returncode, errors)
        except subprocess.TimeoutExpired:
            _end(process)
            said, _ = process.communicate()
            ending = f"did not end within {seconds:.0f} seconds"
        finally:
            _end(process)
    return judge_stages(read_answers(said), ending)


def read_answers(said: str) -> Answers:
    """Return what the stages said; whatever else stands between their lines is ignored."""
    answers = {}
    for line in said.splitlines():
        with contextlib.suppress(ValueError, TypeError):
            check, works, text = json.loads(line)
            answers[str(check)] = bool(works), str(text)
    return answers


def judge_stages(answers: Answers, ending: str) -> list[CheckResult]:
    """Judge each stage: it worked, it failed, or the process ended (and ``ending`` says how) before the stage did."""
    silent = [stage.check for stage in STAGES if stage.check not in answers]
    return [CheckResult(stage.check, _judge_stage(stage, answers, silent, ending)) for stage in STAGES]


def _judge_stage(stage: Stage, answers: Answers, silent: Sequence[str], ending: str) -> Finding:
    if stage.check in answers:
        works, text = answers[stage.check]
        return ok(text) if works else problem(text, stage.why, stage.cure)
    if stage.check == silent[0]:
        return problem(f"The test process {ending}.", stage.why, stage.cure)
    return problem(
        f"This was not tried, because the test process ended at {silent[0]!r}.", stage.why, "Solve that problem first."
    )


def _end(process: subprocess.Popen[str]) -> None:
    """End the process and all that it started."""
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def _how_it_ended(code: int, errors: str) -> str:
    if code < 0:
        return f"was ended by signal {-code} (4: this processor lacks an instruction; 9: probably out of memory)"
    last = " / ".join(line.strip() for line in errors.strip().splitlines()[-LAST_LINES:])
    return f"ended with code {code}: {last}" if last else f"ended with code {code}"


if __name__ == "__main__":
    main()
