"""How long the performance model takes: a whole profile, and sweeps over options."""

from __future__ import annotations

from dataclasses import replace

import torch
import torchvision

import ipu_model
import poptorch
from ipu_model.explore.options import with_options
from ipu_model.predict import profile_program
from ipu_model.predict.hardware import system_named
from ipu_model.predict.profile import Profile
from ipu_model.predict.program import Program
from measurements.stepping import WithLoss
from measurements.timing import Row, medians

POINTS = 200


def rows(rounds: int) -> list[Row]:
    """Measure a profile from nothing, a sweep of its options, and a large system against a small one."""
    network = torchvision.models.resnet101()
    network.layer3[8] = poptorch.BeginBlock(network.layer3[8], ipu_id=1)
    model = WithLoss(network).half()
    whole = medians({"profile": lambda: _profile(model)}, 2)["profile"]
    program = _profile(model).program
    assert program is not None
    large = replace(with_options(program, replicas=64, gradient_accumulation=1024), system=system_named("POD256"))
    sweep = medians({"sweep": lambda: _sweep(program)}, 1)["sweep"]
    sizes = medians({"one": lambda: profile_program(program), "many": lambda: profile_program(large)}, min(rounds, 5))
    return [
        Row.seconds("ResNet-101 (64x3x64x64, fp16): capture and whole profile", whole, at_most=3.0),
        Row.seconds(f"  {POINTS} profiles with other options", sweep, at_most=15.0),
        Row("  64 replicas on a POD256, accumulation 1,024 / one replica, accumulation 8",
            f"{sizes['many'] / sizes['one']:.2f}x", "about as fast"),
    ]  # fmt: skip


def _profile(model: torch.nn.Module) -> Profile:
    options = poptorch.Options()
    options.Training.gradientAccumulation(8)
    inputs = torch.zeros(64, 3, 64, 64, dtype=torch.half), torch.zeros(64, dtype=torch.int64)
    optimiser = poptorch.optim.AdamW(model.parameters(), lr=1e-3)
    return ipu_model.profile_module(model, inputs, options, optimizer=optimiser, micro_batch=True)


def _sweep(program: Program) -> None:
    for point in range(POINTS):
        profile_program(
            with_options(
                program,
                gradient_accumulation=3 + point % 20,
                device_iterations=1 + point // 20,
                available_memory_proportion=(0.2, 0.6)[point % 2],
            )
        )
