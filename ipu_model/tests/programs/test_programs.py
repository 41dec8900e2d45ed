"""Whole programs, as users of PopTorch write them, run to the end and check their own results.

Every file in a subfolder is such a program. It checks what it computed, and exits with 0 only if that is right. What
the programs share and are not about is in program_kit.py. A line `# run with: poprun ...` says how to start a program.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_PROGRAMS = {f"{path.parent.name}/{path.stem}": path for path in sorted(_HERE.glob("*/*.py"))}
_PATIENCE_IN_S = 180.0

# What repeats the programs of every run at length.
_NIGHT = {
    "dcgan", "gps_hybrid", "bilstm_tagger", "distillation_and_lora", "nanogpt", "transformer_translation", "dlrm",
    "ppo_cartpole", "abc_epidemic", "fourier_operator", "gaussian_process", "conformer_ctc", "fastpitch_tts",
    "dino_two_models", "mae_pretrain", "mobilenet_finetune", "spiking_network", "multi_task",
}  # fmt: skip

# Programs are forked from a process that has imported torch: that import takes longer than most of the programs.
# On macOS, whose libraries do not bear a fork, each is started anew.
_FORK = sys.platform == "linux"
_fork_server = multiprocessing.get_context("forkserver")
_fork_server.set_forkserver_preload(["__main__", "torch", "torch.utils.data", "poptorch"])


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
    status = process.exitcode
    if status is None and process.pid is not None:
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
    return status


def _status_of_command(path: Path, folder: Path, log: Path, poprun: tuple[str, ...]) -> int | None:
    command = [sys.executable, str(path)]
    if poprun:
        start = "import sys; from popdist.run.command import main; sys.exit(main())"
        command = [sys.executable, "-c", start, *poprun, *command]
    paths = os.pathsep.join(filter(None, (str(_HERE), os.environ.get("PYTHONPATH"))))
    env = {**os.environ, "TQDM_DISABLE": "1", "PYTHONPATH": paths}
    with log.open("wb") as output:
        how = {"cwd": folder, "env": env, "stdout": output, "stderr": subprocess.STDOUT}
        try:
            return subprocess.run(command, timeout=_PATIENCE_IN_S, check=False, **how).returncode
        except subprocess.TimeoutExpired:
            return None


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.night] * (path.stem in _NIGHT)) for name, path in _PROGRAMS.items()
])  # fmt: skip
def test_the_program_exits_with_success(name: str, tmp_path: Path) -> None:
    path, log, folder = _PROGRAMS[name], tmp_path / "output.txt", tmp_path / "run"
    folder.mkdir()
    poprun = re.search(r"^# run with: poprun (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    if _FORK and poprun is None:
        status = _status_of_fork(path, folder, log)
    else:
        status = _status_of_command(path, folder, log, tuple(poprun[1].split()) if poprun else ())
    if status != 0:
        ended = f"did not end within {_PATIENCE_IN_S:.0f} s" if status is None else f"exited with {status}"
        pytest.fail(f"{name} {ended}:\n{log.read_text(errors='replace')[-8000:]}", pytrace=False)


def test_every_program_of_the_night_exists() -> None:
    assert {path.stem for path in _PROGRAMS.values()} > _NIGHT
