"""The check of a learner's program for poprun: start it in two instances, and compare it with plain PyTorch."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from types import FunctionType
from typing import Mapping

import torch
from torch import Tensor, nn

from ipu_course.datasets import mnist
from ipu_course.instances.function_file import write_function
from ipu_course.lessons.data_parallelism.poprun_run import PoprunEnd, run_poprun
from ipu_course.models import Digits

IMAGES, MICRO_BATCH, ACCUMULATION, RATE = 1_024, 8, 2, 0.1
INSTANCES, REPLICAS = 2, 4
ROWS = MICRO_BATCH * ACCUMULATION * REPLICAS // INSTANCES
CALLS = IMAGES // (ROWS * INSTANCES)
NEAR = 1e-4  # sums in another order differ far less
LIMIT_SECONDS = 90.0
PROGRAM = "ipu_course.instances.learners_instance"
COMMAND = f"poprun --num-replicas {REPLICAS} --num-instances {INSTANCES} python -m {PROGRAM}"

PLAIN_OPTIONS = (
    "Your options are not popdist.poptorch.Options(), so they do not know poprun's replicas: without "
    "replicationFactor, each instance has one replica, and half of the IPUs are idle."
)
ALL_THE_DATA = (
    "Each instance loads all 1,024 digits. poptorch.DataLoader with the options of popdist gives each instance its "
    "own part, unless auto_distributed_partitioning is off."
)
OWN_WEIGHTS = (
    "After training, the two instances have different weights, because they began with different ones. Send those of "
    "instance 0 to all: hvd.broadcast_parameters(network.state_dict(), root_rank=0)."
)
OTHER_WEIGHTS = (
    "The instances agree, but their weights are not those of plain PyTorch with batches of 64. Use SGD with lr=0.1, "
    "and neither shuffle the digits nor change the reduction."
)


def instance_hint(instance: object) -> str | None:
    """Return the hint for a function that prepares one instance of a distributed run.

    Starts poprun, which takes some seconds.
    """
    if not isinstance(instance, FunctionType):
        return f"instance is a function, written with def; you wrote {instance!r}."
    if instance.__code__.co_freevars:
        return f"instance must not use names of a function around it, such as {instance.__code__.co_freevars[0]!r}."
    return end_hint(_start(instance))


def _start(instance: FunctionType) -> PoprunEnd:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "instance"
        write_function(instance, file)
        return run_poprun(f"{COMMAND} {shlex.quote(file.as_posix())}", LIMIT_SECONDS)


def end_hint(end: PoprunEnd) -> str | None:
    """Return the hint for the end of a run of two instances."""
    errors = [(number, facts["error"]) for number, facts in end.facts.items() if "error" in facts]
    if errors:
        number, error = errors[0]
        return f"In instance {number}, your function or the training after it raised {error}"
    if end.problem:
        return end.problem
    return next((hint for hint in map(_facts_hint, end.facts.values()) if hint is not None), _weights_hint(end.weights))


def _facts_hint(facts: Mapping[str, str]) -> str | None:
    rows, calls = int(facts.get("rows", 0)), int(facts.get("calls", 0))
    if facts.get("popdist") != "True":
        return PLAIN_OPTIONS
    if rows == ROWS // ACCUMULATION:
        return f"A call takes {rows} rows instead of {ROWS}: the options have no accumulation of {ACCUMULATION}."
    if rows * calls == IMAGES:
        return ALL_THE_DATA
    if (rows, calls) != (ROWS, CALLS):
        return (
            f"An instance makes {calls} calls with {rows} rows each, instead of {CALLS} with "
            f"{MICRO_BATCH} x {ACCUMULATION} x {REPLICAS // INSTANCES} = {ROWS}."
        )
    return None if facts.get("agree") == "True" else OWN_WEIGHTS


def _weights_hint(saved: object) -> str | None:
    if not isinstance(saved, (list, tuple)) or len(saved) != 2:
        return "Instance 0 saved no weights, so they cannot be compared."
    first, trained = saved
    return None if bool((trained - plain_pytorch(first)).abs().max() < NEAR) else OTHER_WEIGHTS


def plain_pytorch(first: Tensor) -> Tensor:
    """Return the weights, as one vector, after the same updates in one process of plain PyTorch.

    Each update takes 32 digits of the first half and 32 of the second, as two instances do.
    """
    network, digits = Digits(), mnist(train=True, images=IMAGES)
    nn.utils.vector_to_parameters(first.clone(), network.parameters())
    optimiser = torch.optim.SGD(network.parameters(), lr=RATE)
    for rows in torch.arange(IMAGES).view(INSTANCES, CALLS, ROWS).transpose(0, 1).reshape(CALLS, -1):
        optimiser.zero_grad()
        nn.functional.cross_entropy(network.layers(digits.images[rows]), digits.labels[rows]).backward()
        optimiser.step()
    return nn.utils.parameters_to_vector(network.parameters()).detach()
