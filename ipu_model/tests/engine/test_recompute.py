"""Which forward results wait for the backward pass, and which ops run again instead."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from cost_support import Trained, stepped
from torch import nn
from tracing_support import Net

from ipu_model.capture.describe import step_of
from ipu_model.predict.order import held_tensors
from ipu_model.predict.program import Execution, Program, Recomputation
from ipu_model.predict.recomputation import Pass, Recomputed, kept_for_backward, recomputation_over, sequence_of
from ipu_model.step import Phase, Step
from published.building import begin_block, checkpoint
from published.convolutional import day03, mlperf_resnet50

NONE, ALL, PIPELINE = Recomputation.NONE, Recomputation.ALL, Recomputation.PIPELINE
X = torch.zeros(4, 8)


def chain(ipus: int = 1, checkpointed: int | None = None) -> Step:
    """Return six linear layers, each followed by a square, which needs its input for the backward pass."""
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), Net(lambda net, x: x**2)) for _ in range(6)))
    for ipu in range(1, ipus):
        begin_block(layers[6 // ipus * ipu], ipu)
    if checkpointed is not None:
        checkpoint(layers[checkpointed])
    return stepped(Trained(layers), X)


def kept_by(step: Step, mode: Recomputation) -> Recomputed:
    return kept_for_backward(Program(step, True, recomputation=mode))


def counted(names: frozenset[str], step: Step, stage: int | None = None) -> Counter[str]:
    """Return how many ops of each kind there are among the names, in one stage or all."""
    return Counter(step.by_name[name].kind for name in names if stage in (None, step.by_name[name].stage))


@pytest.mark.parametrize(("ipus", "checkpointed", "mode", "stage", "stored", "again"), [
    # A square needs its input, the next layer its output: 6 linear layers and 5 squares (the last is summed).
    (1, None, NONE, None, (6, 5), (0, 0)),
    (1, None, ALL, None, (0, 0), (6, 5)),
    # A checkpoint is stored and cuts the way back.
    (1, 2, ALL, None, (0, 1), (6, 4)),
    # The last square before the border is used by the next stage only.
    (2, None, PIPELINE, 0, (0, 0), (3, 2)),
    # A pipeline goes on from its last stage, unless the program marked a checkpoint in it.
    (3, None, PIPELINE, 2, (2, 1), (0, 0)),
    (2, 4, PIPELINE, 1, (0, 1), (3, 1)),
])  # fmt: skip
def test_layers_and_squares(ipus: int, checkpointed: Any, mode: Any, stage: Any, stored: Any, again: Any) -> None:
    step = chain(ipus, checkpointed)
    found = kept_by(step, mode)
    for names, numbers in ((found.stored, stored), (found.again, again)):
        kinds = counted(names, step, stage)
        assert (kinds["addmm"], kinds["pow"]) == numbers


def test_norms_only() -> None:
    """day03: every convolution's output stays, norms and the ReLU behind them run again."""
    step = step_of(day03())
    found = kept_by(step, Recomputation.NORM_ONLY)
    assert counted(found.stored, step)["convolution"] == 104
    again = counted(found.again, step)
    assert (again["convolution"], again["native_batch_norm"]) == (0, 104)


@pytest.mark.slow
def test_standard_cuts_residual_networks_between_their_blocks() -> None:
    """A block's output lies where its last norm's did: addition and ReLU work in place."""
    step = step_of(mlperf_resnet50(checkpoints=False))
    stored = counted(kept_by(step, Recomputation.STANDARD).stored, step)
    assert stored["convolution"] == 0
    assert 3 <= stored["native_batch_norm"] <= 8


def test_inference_keeps_nothing() -> None:
    step = stepped(nn.Linear(8, 8), X, training=False)
    assert kept_for_backward(Program(step, False, recomputation=ALL)) == Recomputed(frozenset(), frozenset())


def test_the_mask_of_a_dropout_is_drawn_again_and_never_stored() -> None:
    """x + dropout(linear(x)): the gradient needs the mask and not the linear layer's result, whose shape is enough."""
    residual = Net(lambda net, x: x + net.dropout(net.layer(x)), layer=nn.Linear(8, 8), dropout=nn.Dropout(0.1))
    step = stepped(Trained(residual), X)
    for mode in (NONE, ALL):
        found = kept_by(step, mode)
        stored, again = counted(found.stored, step), counted(found.again, step)
        assert again["bernoulli_"] + again["bernoulli"] == 1
        assert not stored.keys() & {"bernoulli", "bernoulli_", "empty_like"}
        assert not again["addmm"]
    held = held_tensors(Program(step, training=True), kept_by(step, NONE))
    assert [tensor.tensor.name for tensor in held] == ["input_0"]


@pytest.mark.parametrize("mode", Recomputation)
def test_rules_of_every_mode(mode: Recomputation) -> None:
    """What the backward pass reads is there, no result is stored and made again, and only forward ops run again.

    Every op runs once, and those that run again twice.
    """
    for step in (chain(ipus=2, checkpointed=1), step_of(day03())):
        program = Program(step, training=True, recomputation=mode)
        found = kept_for_backward(program)
        assert kept_by(step, NONE).stored <= found.stored | found.again
        assert not found.stored & found.again
        assert all(step.by_name[name].phase is Phase.FORWARD for name in found.again)
        runs = [run.op for run in sequence_of(program)]
        assert sorted(runs) == sorted([op.name for op in step.ops] + list(found.again))


@pytest.mark.parametrize(("ipus", "checkpointed", "mode", "stage", "passes"), [
    # Recomputation and backward pass alternate from checkpoint to checkpoint: one makes two segments, and the last
    # layer's square needs no second run of its own output.
    (1, 2, ALL, 0, "forward backward recompute backward recompute backward"),
    (3, None, PIPELINE, 0, "forward recompute backward"),
    (3, None, PIPELINE, 2, "forward backward"),
])  # fmt: skip
def test_passes_of_a_stage(ipus: int, checkpointed: int | None, mode: Recomputation, stage: int, passes: str) -> None:
    program = Program(chain(ipus, checkpointed), training=True, recomputation=mode)
    during = [run.during for run in sequence_of(program) if run.stage == stage]
    stretches = [current for place, current in enumerate(during) if place == 0 or during[place - 1] is not current]
    assert stretches == [Pass(name) for name in passes.split()]


@pytest.mark.parametrize(("ipus", "now", "training", "execution", "on", "expected"), [
    (1, NONE, True, Execution.PIPELINED, 2, PIPELINE),
    (2, PIPELINE, True, Execution.PIPELINED, 1, NONE),
    (2, PIPELINE, True, Execution.SHARDED, 2, NONE),
    (2, NONE, True, Execution.PIPELINED, 3, NONE),  # asked for: it stays
    (1, ALL, True, Execution.PIPELINED, 2, ALL),
    (1, NONE, False, Execution.PIPELINED, 2, NONE),
])  # fmt: skip
def test_a_program_follows_the_default_until_it_asks_for_something_else(
    ipus: int, now: Recomputation, training: bool, execution: Execution, on: int, expected: Recomputation
) -> None:
    """PopTorch recomputes pipelines of several IPUs in training, unless the program says otherwise."""
    assert recomputation_over(Program(chain(ipus), training, recomputation=now), execution, on) is expected
