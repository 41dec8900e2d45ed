"""Whole programs, as users of PopTorch write them, run to the end and check their own results.

Every file in a subfolder is such a program. It checks what it computed, and exits with 0 only if that is right. What
the programs share and PopTorch has no part in is in program_kit.py. A line `# run with: poprun ...` at the top says
how to start a program.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_PATIENCE_IN_S = 180.0

# What repeats the programs of every run at length, and for what it is there.
_NIGHT: Mapping[str, str] = {
    "generative/dcgan": "two training models that exchange weights",
    "generative/score_langevin": "random numbers in loops on the device",
    "language/gru_sentiment": "a GRU in half precision over two IPUs",
    "reinforcement/dqn_gridworld": "three executors whose weights are exchanged",
    "vision/mobilenet_finetune": "frozen layers of torchvision and a moving average",
    "vision/spiking_network": "state in plain attributes",
    "vision/unet_segmentation": "skip connections over four stages",
    "workshop/multi_task": "dictionaries of outputs, constant attributes of optimisers",
}

# Programs are forked from a process that has imported torch: that import takes longer than most of the programs.
# On macOS, whose libraries do not bear a fork, each is started anew.
_FORK = sys.platform == "linux"
_fork_server = multiprocessing.get_context("forkserver")
_fork_server.set_forkserver_preload(["__main__", "torch", "torch.utils.data", "poptorch"])


def _name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def _become(path: Path, folder: Path, log: Path) -> None:
    """Run the program in this process, as `python program.py` in a folder of its own would."""
    os.setpgid(0, 0)
    output = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(output, sys.stdout.fileno())
    os.dup2(output, sys.stderr.fileno())
    os.environ["TQDM_DISABLE"] = "1"
    os.chdir(folder)
    # The process has inherited the fork server's method of starting its own children: take the platform's again.
    multiprocessing.set_start_method(multiprocessing.get_all_start_methods()[0], force=True)
    sys.argv = [str(path)]
    sys.path[:0] = [str(path.parent), str(_HERE)]
    runpy.run_path(str(path), run_name="__main__")


def _status_of_fork(path: Path, folder: Path, log: Path) -> int | None:
    process = _fork_server.Process(target=_become, args=(path, folder, log))
    process.start()
    process.join(_PATIENCE_IN_S)
    if process.exitcode is None and process.pid is not None:
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
        return None
    return process.exitcode


def _status_of_command(path: Path, folder: Path, log: Path, poprun: tuple[str, ...]) -> int | None:
    command = [sys.executable, str(path)]
    if poprun:
        start = "import sys; from popdist.run.command import main; sys.exit(main())"
        command = [sys.executable, "-c", start, *poprun, *command]
    paths = os.pathsep.join(filter(None, (str(_HERE), os.environ.get("PYTHONPATH"))))
    with log.open("wb") as output:
        try:
            return subprocess.run(
                command,
                cwd=folder,
                env={**os.environ, "TQDM_DISABLE": "1", "PYTHONPATH": paths},
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=_PATIENCE_IN_S,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            return None


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=_name(path), marks=[pytest.mark.night] if _name(path) in _NIGHT else [])
        for path in sorted(_HERE.glob("*/*.py"))
    ],
)
def test_the_program_exits_with_success(path: Path, tmp_path: Path) -> None:
    log = tmp_path / "output.txt"
    folder = tmp_path / "run"
    folder.mkdir()
    poprun = re.search(r"^# run with: poprun (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    if _FORK and poprun is None:
        status = _status_of_fork(path, folder, log)
    else:
        status = _status_of_command(path, folder, log, tuple(poprun[1].split()) if poprun else ())
    if status != 0:
        ended = f"did not end within {_PATIENCE_IN_S:.0f} s" if status is None else f"exited with {status}"
        pytest.fail(f"{_name(path)} {ended}:\n{log.read_text(errors='replace')[-8000:]}", pytrace=False)


def test_every_program_of_the_night_exists() -> None:
    assert {_name(path) for path in _HERE.glob("*/*.py")} > set(_NIGHT)
