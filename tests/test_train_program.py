"""``python -m ipu_course train`` run for real: what it prints, what it learns, how it ends."""

from __future__ import annotations

import multiprocessing
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from train_support import profile

import poptorch
from ipu_course import engine
from ipu_course.programs.command_line import main
from ipu_course.programs.train import program
from ipu_course.programs.train.program import train_epoch

# Two epochs of three calls of 16 images each.
SHORT = "train --model shufflenet_v2_x0_5 --image-size 32 --batch-size 16 --gradient-accumulation 1 --epochs 2 "
SHORT += "--limit-batches 3 --precision 32.32 --seed 1 --dataset shapes"
# For what does not depend on how often it trains: one epoch of one call.
ONCE = "--epochs 1 --limit-batches 1"


@pytest.fixture(autouse=True)
def modelled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A profile with 0.5 s a call in place of the engine's; the list holds what it was asked about."""
    asked: list[Any] = []

    def ask(model: Any, host: Any = None) -> Any:
        asked.append((model, host))
        return profile(call_seconds=0.5)

    monkeypatch.setattr(engine, "profile", ask)
    return asked


@dataclass(frozen=True)
class Told:
    """What a run of the short program printed, on either channel, and what it asked the engine about."""

    lines: list[str]
    errors: str
    asked: list[Any]


@pytest.fixture(scope="module")
def runs() -> dict[str, Told]:
    """What the short program told with options that it ran with already."""
    return {}


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str], modelled: list[Any], runs: dict[str, Told]) -> Callable[..., Told]:
    """A function that returns what the short program tells with more options, without running it anew for each test."""

    def tell(options: str = "") -> Told:
        if options not in runs:
            assert main((SHORT + " " + options).split()) == 0
            printed = capsys.readouterr()
            runs[options] = Told(printed.out.splitlines(), printed.err, list(modelled))
        return runs[options]

    return tell


def run(capsys: pytest.CaptureFixture[str], options: str = "") -> list[str]:
    """Run the short program with more options and return the lines it prints."""
    assert main((SHORT + " " + options).split()) == 0
    return capsys.readouterr().out.splitlines()


def refusal(capsys: pytest.CaptureFixture[str], options: str) -> str:
    """Run the short program with options that it refuses, and return its one line."""
    assert main((SHORT + " " + options).split()) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "Graph compilation" not in line]
    assert line.startswith("python -m ipu_course train: error: ")
    return line


def results(lines: list[str]) -> list[str]:
    """The lines with loss and accuracy."""
    return [line for line in lines if " loss: " in line]


class TestOutput:
    def test_the_lines_are_the_workshop_s(self, told: Callable[..., Told]) -> None:
        lines = told().lines
        assert lines[0].startswith(
            "Namespace(async_dataloader=False, batch_size=16, device_iterations=1, eight_bit_io=False, epochs=2, "
            "gradient_accumulation=1, precision='32.32', replicas=1, "
        )
        # The workshop: "[Epoch 01] loss: 1.760, acc: 37.2".
        assert [
            bool(re.fullmatch(r"\[Epoch 0\d\] loss: \d\.\d{3}, acc: \d+\.\d", line)) for line in results(lines)
        ] == [
            True,
            True,
        ]

    def test_without_a_terminal_the_bars_are_written_once_finished(self, told: Callable[..., Told]) -> None:
        written = told().errors
        assert "Graph compilation: 100%|██████████| 100/100" in written
        bars = [line for line in written.splitlines() if line.startswith("[Epoch")]
        # The workshop: "[Epoch 02]: 100%|██████████| 97/97 [00:46<00:00,  2.10it/s, loss=1.01, acc=67.2]".
        form = (
            r"\[Epoch 0%d\]: 100%%\|██████████\| 3/3 \[\d\d:\d\d<00:00, +[\d.]+(it/s|s/it), loss=[\d.]+, acc=[\d.]+\]"
        )
        assert len(bars) == 2
        for number, bar in enumerate(bars, start=1):
            assert re.fullmatch(form % number, bar)

    def test_a_terminal_gets_bars_with_loss_and_accuracy(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        assert main(SHORT.split()) == 0
        written = capsys.readouterr().err
        assert re.search(r"\[Epoch 01\]: 100%\|\S+\| 3/3 .*loss=[\d.]+, acc=[\d.]+", written)
        assert re.search(r"\[Epoch 01\]: +33%\|", written)

    def test_an_epoch_s_figures_are_the_means_over_calls_and_replicas(self, capsys: pytest.CaptureFixture[str]) -> None:
        results_of_calls = iter([([1.0, 2.0], [50.0, 25.0]), ([3.0, 4.0], [100.0, 75.0])])

        def model(_: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, None, torch.Tensor]:
            losses, accuracies = next(results_of_calls)
            return torch.tensor(losses), None, torch.tensor(accuracies)

        executor: Any = model
        loader: Any = [(torch.zeros(2), torch.zeros(2))] * 2
        assert train_epoch(executor, loader, epoch=7) >= 0
        printed = capsys.readouterr()
        assert printed.out == "[Epoch 07] loss: 2.500, acc: 62.5\n"
        assert "loss=3.5, acc=87.5]" in printed.err  # the last call's

    def test_it_says_that_the_pictures_are_not_cifar_10(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        lines = run(capsys, f"--dataset auto --data-folder {tmp_path} {ONCE}")
        assert lines[1].startswith("Data: synthetic shapes")
        assert lines[2].startswith(f"Notice: this is not CIFAR-10, whose files are not in '{tmp_path}'")
        assert list(tmp_path.iterdir()) == []

    def test_the_arithmetic_of_a_call_is_told(self, capsys: pytest.CaptureFixture[str]) -> None:
        lines = run(capsys, "--device-iterations 2 --replicas 2 --limit-batches 1 --epochs 1")
        assert "Training: 1 call of 64 images an epoch (16 x 1 x 2 x 2), 1 stage" in lines

    def test_who_asks_for_shapes_gets_no_notice(self, told: Callable[..., Told]) -> None:
        assert not any(line.startswith("Notice") for line in told().lines)


class TestTimes:
    def test_measured_and_modelled_stand_side_by_side(self, told: Callable[..., Told]) -> None:
        first, second = [line for line in told().lines if "measured" in line]
        # Three calls of the stand-in's 0.5 s, and its 500 s of compilation.
        assert re.fullmatch(
            r"\[Epoch 01\] measured here: \d+\.\d+ s \(CPU, compilation included\); "
            r"modelled on IPU: 1\.5 s, and 8 min 20 s for the compilation",
            first,
        )
        assert re.fullmatch(r"\[Epoch 02\] measured here: \d+\.\d+ s \(CPU\); modelled on IPU: 1\.5 s", second)
        assert len(told().asked) == 1  # one profile for all epochs

    def test_the_model_gets_the_host_of_the_published_runs(
        self, capsys: pytest.CaptureFixture[str], modelled: list[Any]
    ) -> None:
        lines = run(capsys, f"--eight-bit-io --async-dataloader --num-workers 2 {ONCE}")
        (_, host) = modelled[0]
        # model-feasibility.md, section 8: 0.18 ms an 8-bit image, 34 ms a call.
        assert (host.seconds_per_sample, host.seconds_per_call) == (0.00018, 0.034)
        assert (host.loading.value, host.workers) == ("async", 2)
        (line,) = [line for line in lines if line.startswith("Host in modelled times: fitted on the five published")]
        assert "assumed: 32 x 32 images" in line

    def test_the_loader_can_be_measured_instead(self, capsys: pytest.CaptureFixture[str], modelled: list[Any]) -> None:
        lines = run(capsys, f"--measure-loader {ONCE}")
        (_, host) = modelled[0]
        assert host.source.startswith("measured here: ")
        assert f"{host.seconds_per_sample * 1000:.2f} ms an image" in host.source
        assert host.seconds_per_call == 0
        assert f"Host in modelled times: {host.source}" in lines

    def test_a_program_that_does_not_fit_says_so(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(engine, "profile", lambda model, host: profile(tile_kib=900))
        assert "modelled on IPU: does not fit (900 KiB on the fullest tile, limit 624 KiB)" in run(capsys, ONCE)[-1]

    def test_a_close_call_says_so_beside_its_time(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(engine, "profile", lambda model, host: profile(tile_kib=625))
        last = run(capsys, ONCE)[-1]
        assert "(memory is too close to call: 625 KiB on the fullest tile, limit 624 KiB)" in last
        assert "does not fit" not in last

    def test_what_cannot_be_modelled_is_trained_all_the_same(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise poptorch.Error("no formula")

        monkeypatch.setattr(engine, "profile", fail)
        assert "; not modelled: 'poptorch_py_error': no formula" in run(capsys, ONCE)[-1]

    def test_without_an_ipu_model_only_measured_times_are_shown(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.undo()
        monkeypatch.setattr(engine, "find_spec", lambda name: None)
        lines = run(capsys)
        assert re.fullmatch(r"\[Epoch 02\] measured here: \d+\.\d+ s \(CPU\)", lines[-1])
        assert not any("modelled" in line for line in lines)
        assert "needs the IPU Model" in refusal(capsys, "--profile-only")

    def test_on_ipus_the_measured_time_is_theirs(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(engine, "find_spec", lambda name: None)
        monkeypatch.setattr(program.poptorch, "ipuHardwareIsAvailable", lambda: True)
        assert "s (IPU, compilation included)" in run(capsys, ONCE)[-1]


class TestTraining:
    @pytest.mark.slow
    def test_loss_falls_and_accuracy_rises(self, capsys: pytest.CaptureFixture[str]) -> None:
        options = (
            "train --model resnet18 --image-size 32 --gradient-accumulation 1 --limit-batches 20 --epochs 2 --seed 1"
        )
        assert main(options.split()) == 0
        first, second = (
            [float(number) for number in re.findall(r"\d+\.\d+", line)]
            for line in results(capsys.readouterr().out.splitlines())
        )
        assert second[0] < 0.7 * first[0]
        # Guessing gives 10 %.
        assert second[1] > max(first[1] + 5, 15)

    def test_the_same_seed_gives_the_same_run(
        self, capsys: pytest.CaptureFixture[str], told: Callable[..., Told]
    ) -> None:
        first, again = results(told().lines), results(run(capsys))
        assert first == again
        assert results(run(capsys, "--seed 2")) != first

    @pytest.mark.parametrize("precision", ["--precision 16.16", "--precision 16.32", ""])
    @pytest.mark.parametrize("more", ["", "--eight-bit-io"])
    def test_every_precision_trains(self, precision: str, more: str, told: Callable[..., Told]) -> None:
        """The short program's own precision is 32.32."""
        lines = results(told(f"{precision} {more}".strip()).lines)
        assert len(lines) == 2
        assert not any("nan" in line for line in lines)

    def test_how_images_travel_changes_little(self, told: Callable[..., Told]) -> None:
        # The same images, normalised on the host or on the device: equal but for the rounding.
        losses = [float(re.findall(r"\d+\.\d+", results(told(more).lines)[0])[0]) for more in ("", "--eight-bit-io")]
        assert losses[0] == pytest.approx(losses[1], rel=0.02)

    def test_pipelined_replicated_and_with_device_iterations(self, capsys: pytest.CaptureFixture[str]) -> None:
        options = "--model resnet18 --split layer3 --batch-size 4 --gradient-accumulation 3 --device-iteration 2"
        assert len(results(run(capsys, options + " --replicas 2 --limit-batches 1"))) == 2

    def test_asynchronous_loading_leaves_no_process(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert len(results(run(capsys, "--async-dataloader"))) == 2
        assert multiprocessing.active_children() == []


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "fragment"),
        [
            ("--model resnet19", "nearest: resnet18"),
            ("--model resnet18 --split layer9 --gradient-accumulation 3", "resnet18 has no such layer; nearest: layer"),
            (
                "--batch-size 50001",
                "= 50001 images, but there are 50000; nearest settings that work: --batch-size 50000",
            ),
            ("--model vgg11 --image-size 16", "try a larger image, such as --image-size 224"),
            ("--dataset cifar10 --data-folder nowhere", "'nowhere' has no complete folder"),
            ("--dataset auto --data-folder /nowhere", "--data-folder /nowhere: there is no such folder"),
            ("--limit-batches 100000", "--limit-batches 100000: 50000 images fill "),
        ],
    )
    def test_what_cannot_be_done_is_one_line(
        self, options: str, fragment: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert fragment in refusal(capsys, options)

    def test_the_workshop_s_base_runs_out_of_memory(self, capsys: pytest.CaptureFixture[str]) -> None:
        # day03-resnet101.md: 32.32 at micro-batch 64 does not fit into the tiles of either IPU.
        options = "train --batch-size 64 --precision 32.32 --gradient-accumulation 3 --limit-batches 1 --dataset shapes"
        assert main(options.split()) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert "out of memory" in line
        assert "With this program: --precision 16.16" in line

    @pytest.mark.parametrize("kind", [poptorch.Error, AssertionError])
    def test_an_error_of_poptorch_is_one_line_and_ends_the_loader(
        self, kind: type[Exception], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise kind("the device has gone")

        monkeypatch.setattr(program, "train_epoch", fail)
        assert refusal(capsys, "--async-dataloader").endswith("the device has gone (--debug shows where)")
        assert multiprocessing.active_children() == []

    def test_debugging_shows_where_it_happened(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object) -> None:
            raise poptorch.Error("here")

        monkeypatch.setattr(program, "train_epoch", fail)
        try:
            with pytest.raises(poptorch.Error, match="here"):
                main([*SHORT.split(), "--debug"])
        finally:
            poptorch.setLogLevel("WARN")

    def test_an_interrupt_is_a_line_and_ends_the_loader(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupt(model: Any, loader: Any, epoch: int) -> None:
            next(iter(loader))
            raise KeyboardInterrupt

        monkeypatch.setattr(program, "train_epoch", interrupt)
        assert main([*SHORT.split(), "--async-dataloader"]) == 130
        assert capsys.readouterr().err.endswith("python -m ipu_course train: stopped\n")
        assert multiprocessing.active_children() == []


def test_the_workshop_s_program_runs_out_of_the_box(tmp_path: Path) -> None:
    """ResNet-101 over two IPUs with the published options, offline, in an empty folder; one short call."""
    options = "--batch-size 2 --precision 16.16 --gradient-accumulation 3 --limit-batches 1 --epochs 1"
    command = [sys.executable, "-m", "ipu_course", "train", *options.split()]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-2].startswith("[Epoch 01] loss: ")
    assert re.search(r"measured here: \d+\.\d+ s \(CPU, compilation included\); modelled on IPU: \d+\.\d+ s", lines[-1])
    assert "100%|██████████| 1/1" in done.stderr
    assert list(tmp_path.iterdir()) == []
