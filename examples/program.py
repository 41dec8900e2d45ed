"""What the four programs share: a command line, a training loop and a profile. Only PopTorch's public API."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Callable, Iterable

import torch
from torch import Tensor, nn

import poptorch


@dataclass(frozen=True)
class Program:
    """A model with its optimiser, made when they are needed, and everything else that a training run takes.

    The last thing that the model returns is the loss. ``data`` gives the inputs for so many rows, from a seed.
    """

    build: Callable[[], tuple[nn.Module, torch.optim.Optimizer]]
    options: poptorch.Options
    data: Callable[[int, int], tuple[Tensor, ...]]
    micro_batch: int


def command_line(description: str | None, sizes: Iterable[str]) -> argparse.ArgumentParser:
    """The options that every program has; ``description`` is its docstring."""
    parser = argparse.ArgumentParser(description=(description or "").strip().splitlines()[0])
    parser.add_argument("--size", choices=tuple(sizes), default="tiny", help="tiny trains on a CPU in seconds")
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="weight updates (default: %(default)s)")
    parser.add_argument(
        "--precision", choices=("16", "32"), default="16", help="of weights and activations (default: %(default)s)"
    )
    parser.add_argument("--profile", action="store_true", help="compile and show time and memory; train nothing")
    parser.add_argument(
        "--report", default="profile", metavar="DIR", help="the profile's folder (default: %(default)s)"
    )
    return parser


def run(program: Program, parsed: argparse.Namespace) -> list[float]:
    """Do what the command line says; return the losses, none for a profile."""
    if parsed.profile:
        show_profile(program, parsed.report)
        return []
    return train(program, parsed.steps)


def samples_per_step(program: Program) -> int:
    """How many samples one call of the training model takes."""
    options = program.options
    loops = int(options.device_iterations) * int(options.Training.gradient_accumulation)
    return program.micro_batch * loops * int(options.replication_factor)


def train(program: Program, steps: int) -> list[float]:
    """Train for some steps; print and return the mean loss of each."""
    model, optimizer = program.build()
    options = program.options.clone()
    options.outputMode(poptorch.OutputMode.All)  # the losses of all micro-batches, not only of the last
    training = poptorch.trainingModel(model, options, optimizer)
    losses = []
    for step in range(steps):
        loss = training(*program.data(samples_per_step(program), step))[-1].float().mean().item()
        losses.append(loss)
        print(f"step {step + 1:4d}  loss {loss:.4f}")
    training.destroy()
    return losses


def show_profile(program: Program, report: str) -> None:
    """Compile a training step and show what it takes: with the IPU Model here, else with PopVision.

    The IPU Model needs the shapes only, so that nothing is allocated or computed at any size.
    """
    if find_spec("ipu_model") is None:
        _profile_for_popvision(program, report)
        return
    import ipu_model
    from ipu_model.report.files import write_report
    from ipu_model.report.text import text_report

    with torch.device("meta"):
        model, optimizer = program.build()
    shapes = tuple(tensor.to("meta") for tensor in program.data(program.micro_batch, 0))
    profile = ipu_model.profile_module(model, shapes, program.options, optimizer=optimizer, micro_batch=True)
    print(text_report(profile))
    print(f"Written: {write_report(profile, report).html}")


def _profile_for_popvision(program: Program, report: str) -> None:
    model, optimizer = program.build()
    options = program.options.clone()
    options.enableProfiling(report)
    training = poptorch.trainingModel(model, options, optimizer)
    training(*program.data(samples_per_step(program), 0))
    training.destroy()
    print(f"PopVision Graph Analyser opens {report}")
