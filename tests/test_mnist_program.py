"""``python -m ipu_course mnist`` run for real: what it prints, how it ends, what it leaves behind."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Iterator

import pytest
import torch

import poptorch
from ipu_course.datasets import ImageDataset, mnist
from ipu_course.programs.command_line import main
from ipu_course.programs.mnist import program
from ipu_course.programs.mnist.program import train

# One epoch of 2,000 images in two steps of 25 x 8 x 5 = 1,000.
SHORT = ["mnist", "--epochs", "1", "--batch-size", "25", "--gradient-accumulation", "8"]
SHORT += ["--device-iterations", "5", "--learning-rate", "0.003", "--seed", "1"]
LINUX = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")


@pytest.fixture
def short_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 training images in place of 20,000."""

    def few(train: bool, root: Any = None, download: bool = False) -> ImageDataset:
        return mnist(train, images=2000) if train else mnist(train)

    monkeypatch.setattr(program, "mnist", few)


@pytest.fixture
def usual_log_level() -> Iterator[None]:
    yield
    poptorch.setLogLevel("WARN")


def run(capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    """Run the short program with more options and return the lines it prints."""
    assert main([*SHORT, *options]) == 0
    return capsys.readouterr().out.splitlines()


def results(lines: list[str]) -> list[str]:
    """The lines with loss and accuracies."""
    return [line for line in lines if line.startswith(("Loss", "Accuracy"))]


def start(*options: str) -> subprocess.Popen[str]:
    """Start the program as a shell does: in a session of its own, its output into pipes."""
    return subprocess.Popen(
        [sys.executable, "-m", "ipu_course", "mnist", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def running_in_session(session: int) -> list[str]:
    """The states and names of a session's processes, without those that have ended but were not buried."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, fields = stat.read_text().rsplit(")", 1)
        except OSError:
            continue  # ended meanwhile
        if int(fields.split()[3]) == session and fields.split()[0] != "Z":
            found.append(f"{fields.split()[0]} {name}")
    return found


def test_the_defaults_train_and_test_without_a_terminal(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ipu_course", "mnist", "--epochs", "1", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # neither warnings nor the remains of progress bars
    *head, epoch, last_step, test_line = done.stdout.splitlines()
    assert head[2] == (
        "Training: 5 steps of 4000 images an epoch (40 x 10 x 10), pipelined over 4 IPUs"  # the tutorial's
    )
    assert epoch == "Epoch 1/1"
    assert re.fullmatch(r"Loss:\d\.\d{4} \| Accuracy:\d\d\.\d\d%", last_step)
    tested = re.fullmatch(r"Accuracy on test set: (\d\d\.\d\d)%", test_line)
    assert tested is not None
    # 50 weight updates; guessing would give 10 %.
    assert float(tested[1]) > 85
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("short_epoch")
class TestOptions:
    def test_no_loader_process_is_left(self, capsys: pytest.CaptureFixture[str]) -> None:
        run(capsys)
        assert multiprocessing.active_children() == []

    def test_the_same_seed_gives_the_same_run(self, capsys: pytest.CaptureFixture[str]) -> None:
        first, again = run(capsys), run(capsys)
        assert first == again
        assert results(run(capsys, "--seed", "2")) != results(first)

    def test_strategy_and_offloading_change_no_result(self, capsys: pytest.CaptureFixture[str]) -> None:
        # poptorch-execution.md, section 1: placement affects results only through errors and minima.
        pipelined, sharded = run(capsys), run(capsys, "--strategy", "sharded")
        assert "sharded over 4 IPUs" in sharded[2]
        assert results(sharded) == results(pipelined) == results(run(capsys, "--offload-optimiser"))

    def test_sharded_execution_works_below_the_pipeline_s_minimum(self, capsys: pytest.CaptureFixture[str]) -> None:
        lines = run(capsys, "--strategy", "sharded", "--gradient-accumulation", "1")
        assert "(25 x 1 x 5), sharded" in lines[2]

    def test_more_epochs_lower_the_loss(self, capsys: pytest.CaptureFixture[str]) -> None:
        lines = run(capsys, "--epochs", "3")
        losses = [float(line.split("|")[0].split(":")[1]) for line in lines if line.startswith("Loss")]
        assert len(losses) == 3
        assert losses == sorted(losses, reverse=True)

    def test_images_that_fill_no_test_step_are_named(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert "Testing on 700 of 800 images: the others do not fill a step of 700" in run(
            capsys, "--test-batch-size", "7"
        )

    def test_profiling_leaves_a_report_for_each_model(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        folder = tmp_path / "reports"
        lines = run(capsys, "--profile", "--profile-dir", str(folder))
        assert f"Profile: one report for each model below {folder}" in lines
        assert {file.parent.name for file in folder.rglob("report.html")} == {"training", "inference"}

    @pytest.mark.usefixtures("usual_log_level")
    def test_debugging_logs_the_options(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([*SHORT, "--debug"]) == 0
        assert "[debug] poptorch.Options set gradient_accumulation to value 8" in capsys.readouterr().err

    def test_a_terminal_gets_bars_with_loss_and_accuracy(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        assert main(SHORT) == 0
        printed = capsys.readouterr()
        assert "Graph compilation: 100%" in printed.err
        assert re.search(r"Loss:\d\.\d{4} \| Accuracy:\d\d\.\d\d%: 100%\|\S+\| 2/2", printed.err)
        assert "Loss" not in printed.out  # not once more below the bar


@pytest.mark.usefixtures("short_epoch")
class TestFailure:
    @pytest.mark.parametrize("kind", [poptorch.Error, AssertionError])
    def test_an_error_of_poptorch_is_one_line_and_ends_the_loader(
        self, kind: type[Exception], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise kind("the loader's process was killed")

        monkeypatch.setattr(program, "train", fail)
        assert main(SHORT) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("python -m ipu_course mnist: error: ")
        assert line.endswith("the loader's process was killed (--debug shows where)")
        assert multiprocessing.active_children() == []

    @pytest.mark.usefixtures("usual_log_level")
    def test_debugging_shows_where_it_happened(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object) -> None:
            raise poptorch.Error("here")

        monkeypatch.setattr(program, "train", fail)
        with pytest.raises(poptorch.Error, match="here"):
            main([*SHORT, "--debug"])

    def test_settings_that_do_not_fit_the_data_are_one_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([*SHORT, "--device-iterations", "50"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "= 10000 images, but there are 2000" in line

    def test_an_interrupt_is_a_line_and_ends_the_loader(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupt(model: Any, data: Any, epochs: int) -> None:
            next(iter(data))
            raise KeyboardInterrupt

        monkeypatch.setattr(program, "train", interrupt)
        assert main(SHORT) == 130
        assert capsys.readouterr().err == "python -m ipu_course mnist: stopped\n"
        assert multiprocessing.active_children() == []


@LINUX
def test_ctrl_c_ends_all_processes_with_one_line() -> None:
    process = start("--epochs", "100")
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith("Epoch"):
                break
        assert len(running_in_session(process.pid)) > 1  # the loader works in a process of its own
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130
        assert errors == "python -m ipu_course mnist: stopped\n"
        deadline = time.monotonic() + 20
        while running_in_session(process.pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert running_in_session(process.pid) == []
    finally:
        process.kill()
        process.communicate()


def test_a_reader_that_goes_away_ends_the_program_quietly() -> None:
    process = start("--epochs", "100")
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        assert process.stdout.readline().startswith("Data:")
        process.stdout.close()  # as `| head -1` does
        assert process.wait(timeout=120) == 1
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_a_bar_is_not_followed_by_the_same_figures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    def model(_: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(len(labels), 10), torch.tensor([2.0])

    data: Any = [(torch.zeros(2), torch.tensor([0, 1]))]
    executor: Any = model
    train(executor, data, epochs=1)
    printed = capsys.readouterr()
    assert printed.out == "Epoch 1/1\n"
    assert "Loss:2.0000 | Accuracy:50.00%" in printed.err
