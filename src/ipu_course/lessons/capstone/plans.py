"""Plans for the capstone's network over four IPUs: every one of them in a space that is stated and finite."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Iterator

import torch

import poptorch
from ipu_course import engine
from ipu_course.lessons.capstone.transformer import BASE, LARGE, Transformer, TransformerSize, optimiser_of, sequences

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule, Profile

IPUS = 4
MACHINE = "Bow-2000"
FIRST_MICRO_BATCH = 8
PROPORTIONS = (0.1, 0.15, 0.25, 0.4, 0.6)
# The micro-batches of the space, and the layers that the two IPUs in the middle may have.
MICRO_BATCHES = {BASE.name: (4, 8, 16, 32), LARGE.name: (2, 4, 8, 16)}
MIDDLE = {BASE.name: (3, 4), LARGE.name: (6, 7, 8)}
FEWEST_LAST = {BASE.name: 2, LARGE.name: 4}


@dataclass(frozen=True)
class Plan:
    """All decisions on one program: half precision and half partials, four IPUs, the size's global batch.

    ``layers`` counts the encoder layers of each IPU. The embedding is on IPU 0, the head on IPU ``head``: 0 is a fifth
    stage that comes back to the first IPU. With ``every_layer``, the output of every layer is a checkpoint, else only
    what enters a stage.
    """

    layers: tuple[int, ...]
    head: int
    micro_batch: int
    every_layer: bool
    state_on_chip: bool
    proportion: float


@dataclass(frozen=True)
class PlanGraph:
    """The part of a plan that has to be captured: another one is another graph."""

    layers: tuple[int, ...]
    head: int
    micro_batch: int


def every_cut(size: TransformerSize) -> tuple[tuple[int, ...], ...]:
    """Return the cuts of the space: the IPUs 1 and 2 have equally many layers, and no IPU has more than they."""
    cuts = []
    for middle in MIDDLE[size.name]:
        rest = size.layers - 2 * middle
        for last in range(FEWEST_LAST[size.name], rest + 1):
            first = rest - last
            if last <= middle and first <= middle:
                cuts.append((first, middle, middle, last))
    return tuple(cuts)


def every_graph(size: TransformerSize) -> Iterator[PlanGraph]:
    """Yield every graph of the space."""
    for micro_batch, cut, head in product(MICRO_BATCHES[size.name], every_cut(size), (0, IPUS - 1)):
        yield PlanGraph(cut, head, micro_batch)


def plans_of(graph: PlanGraph) -> Iterator[Plan]:
    """Yield every plan of the space with one graph."""
    for every_layer, on_chip, proportion in product((False, True), (True, False), PROPORTIONS):
        yield Plan(graph.layers, graph.head, graph.micro_batch, every_layer, on_chip, proportion)


def captured_graph(size: TransformerSize, graph: PlanGraph) -> ModelledModule:
    """Capture the network in half precision with the blocks of one graph."""
    with torch.device("meta"):
        model = Transformer(size).half()
        inputs = tuple(each.to("meta") for each in sequences(size, graph.micro_batch, seed=0))
        optimiser = optimiser_of(model)
    ipus = [ipu for ipu, count in enumerate(graph.layers) for _ in range(count)]
    poptorch.BeginBlock(model.embedding, "embedding", ipu_id=0)
    for number, (layer, ipu) in enumerate(zip(model.layers, ipus)):
        poptorch.BeginBlock(layer, f"layer {number}", ipu_id=ipu)
    poptorch.BeginBlock(model.head, "head", ipu_id=graph.head)
    options = poptorch.Options().setExecutionStrategy(
        poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement)
    )  # fmt: skip
    options.Precision.setPartialsType(torch.half)
    options.Training.gradientAccumulation(size.global_batch // graph.micro_batch)
    return engine.modelled_module(model, inputs, options, optimiser)


def profile_plan(module: ModelledModule, size: TransformerSize, plan: Plan) -> Profile:
    """Return the profile of a plan whose graph was captured."""
    changes: dict[str, Any] = {}
    if plan.every_layer:
        changes["checkpoints"] = [f"layers.{number}" for number in range(size.layers)]
    return module.profile(
        machine=MACHINE,
        optimiser_off_chip=not plan.state_on_chip,
        available_memory_proportion=plan.proportion,
        **changes,
    )


def as_it_is(size: TransformerSize) -> tuple[Transformer, tuple[torch.Tensor, ...], poptorch.Options, Any]:
    """Return the program before any plan: float32 on one IPU, with 8 sequences in a micro-batch.

    It is the network and a micro-batch, both without values, the options and the optimiser.
    """
    with torch.device("meta"):
        model = Transformer(size)
        inputs = tuple(each.to("meta") for each in sequences(size, FIRST_MICRO_BATCH, seed=0))
    options = poptorch.Options()
    options.Training.gradientAccumulation(size.global_batch // FIRST_MICRO_BATCH)
    return model, inputs, options, optimiser_of(model)
