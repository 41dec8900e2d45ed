"""What the four programs share: a command line, a training loop and a profile. Only PopTorch's public API."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from typing import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

import poptorch

REPORT = "profile"


def command_line(description: str | None, sizes: Iterable[str]) -> argparse.ArgumentParser:
    """The options that every program has; ``description`` is its docstring."""
    parser = argparse.ArgumentParser(description=(description or "").strip().splitlines()[0])
    parser.add_argument("--size", choices=tuple(sizes), default="tiny", help="tiny trains on a CPU in seconds")
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="weight updates (default: %(default)s)")
    parser.add_argument(
        "--precision", choices=("16", "32"), default="16", help="of weights and activations (default: %(default)s)"
    )
    parser.add_argument("--profile", action="store_true", help="compile and show time and memory; train nothing")
    parser.add_argument("--report", default=REPORT, metavar="DIR", help="where the profile goes (default: %(default)s)")
    return parser


def samples_per_step(options: poptorch.Options, micro_batch: int) -> int:
    """How many samples one call of the training model takes."""
    loops = int(options.device_iterations) * int(options.Training.gradient_accumulation)
    return micro_batch * loops * int(options.replication_factor)


def train(
    model: nn.Module,
    options: poptorch.Options,
    optimizer: torch.optim.Optimizer,
    data: Callable[[int], Sequence[Tensor]],
    steps: int,
) -> list[float]:
    """Train for some steps and return the mean loss of each; the last thing that ``model`` returns is the loss.

    ``data`` gives the inputs of the step of that number.
    """
    options.outputMode(poptorch.OutputMode.All)  # the losses of all micro-batches, not only of the last
    training = poptorch.trainingModel(model, options, optimizer)
    losses = []
    for step in range(steps):
        loss = training(*data(step))[-1].float().mean().item()
        losses.append(loss)
        print(f"step {step + 1:4d}  loss {loss:.4f}")
    training.copyWeightsToHost()
    training.destroy()
    return losses


def show_profile(
    build: Callable[[], tuple[nn.Module, torch.optim.Optimizer]],
    options: poptorch.Options,
    micro_batch: Sequence[Tensor],
    report: str,
) -> None:
    """Compile a training step and show what it takes: with the IPU Model here, else for PopVision.

    The IPU Model needs the shapes only, so that nothing is allocated or computed at any size.
    """
    if find_spec("ipu_model") is None:
        _profile_for_popvision(build, options, micro_batch, report)
        return
    import ipu_model
    from ipu_model.report.files import write_report
    from ipu_model.report.text import text_report

    with torch.device("meta"):
        model, optimizer = build()
    shapes = tuple(tensor.to("meta") for tensor in micro_batch)
    profile = ipu_model.profile_module(model, shapes, options, optimizer=optimizer, micro_batch=True)
    print(text_report(profile))
    print(f"Written: {write_report(profile, report).html}")


def _profile_for_popvision(
    build: Callable[[], tuple[nn.Module, torch.optim.Optimizer]],
    options: poptorch.Options,
    micro_batch: Sequence[Tensor],
    report: str,
) -> None:
    model, optimizer = build()
    options.enableProfiling(report)
    rows = samples_per_step(options, 1)
    batch = tuple(tensor.repeat(rows, *(1 for _ in tensor.shape[1:])) for tensor in micro_batch)
    training = poptorch.trainingModel(model, options, optimizer)
    training.compile(*batch)
    training(*batch)
    training.destroy()
    print(f"PopVision Graph Analyser opens {report}")
