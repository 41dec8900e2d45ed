"""Which forward results wait for the backward pass, and which ops run again instead."""

from __future__ import annotations

import pytest
import torch
from cost_support import Trained
from torch import Tensor, nn
from tracing_support import traced

from ipu_model.capture import tracing
from ipu_model.capture.describe import step_of
from ipu_model.capture.graph import Graph
from ipu_model.predict.order import held_tensors
from ipu_model.predict.program import Execution, Program, Recomputation
from ipu_model.predict.recomputation import Pass, Recomputed, kept_for_backward, recomputation_over, sequence_of
from ipu_model.step import Phase
from published.building import begin_block
from published.convolutional import day03, mlperf_resnet50

X = torch.zeros(4, 8)


class Chain(nn.Module):
    """Six linear layers, each followed by a square, which needs its input for the backward pass."""

    def __init__(self, checkpoint: int | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))
        self.checkpoint = checkpoint

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            x = layer(x) ** 2
            trace = tracing.current()
            if number == self.checkpoint and trace is not None:
                trace.hint(x, recomputation_checkpoint=True)
        return x


def chain(ipus: int = 1, checkpoint: int | None = None) -> Graph:
    model = Chain(checkpoint)
    for ipu in range(1, ipus):
        begin_block(model.layers[6 // ipus * ipu], ipu)
    return traced(Trained(model), X)


def kept(graph: Graph, mode: Recomputation, *, training: bool = True) -> Recomputed:
    return kept_for_backward(Program(step_of(graph), training, recomputation=mode))


def forward_ops(graph: Graph, stage: int | None = None) -> set[str]:
    return {op.name for op in step_of(graph).ops if op.phase is Phase.FORWARD and stage in (None, op.stage)}


class TestModes:
    def test_without_recomputation_nothing_runs_again(self) -> None:
        graph = chain()
        assert kept(graph, Recomputation.NONE).again == frozenset()

    def test_what_the_backward_pass_reads_is_stored(self) -> None:
        """A square needs its input, the next layer its output: 6 linear layers and 5 squares (the last is summed)."""
        stored = kept(chain(), Recomputation.NONE).stored
        assert sum(name.startswith("addmm") for name in stored) == 6
        assert sum(name.startswith("pow") for name in stored) == 5

    def test_recomputing_everything_stores_nothing_that_the_ops_compute(self) -> None:
        found = kept(chain(), Recomputation.ALL)
        assert not any(name.startswith(("addmm", "pow")) for name in found.stored)
        assert sum(name.startswith("addmm") for name in found.again) == 6

    def test_a_pipeline_goes_on_from_its_last_stage(self) -> None:
        graph = chain(ipus=3)
        again = kept(graph, Recomputation.PIPELINE).again
        assert again
        assert not again & forward_ops(graph, stage=2)

    def test_the_last_stage_recomputes_between_checkpoints_that_the_program_marked_in_it(self) -> None:
        """Six layers on two IPUs: the output of layer 4, in the middle of the last stage, is a checkpoint."""
        graph = chain(ipus=2, checkpoint=4)
        found = kept(graph, Recomputation.PIPELINE)
        last = forward_ops(graph, stage=1)
        assert sum(name.startswith("addmm") for name in found.again & last) == 3
        assert sum(name.startswith("pow") for name in found.stored & last) == 1

    def test_the_last_op_before_the_gradient_need_not_run_again(self) -> None:
        """The last square's result is used by the next stage only."""
        graph = chain(ipus=2)
        squares = [name for name in forward_ops(graph, stage=0) if name.startswith("pow")]
        assert sum(name in kept(graph, Recomputation.PIPELINE).again for name in squares) == len(squares) - 1

    def test_checkpoints_are_stored_and_cut_the_way_back(self) -> None:
        found = kept(chain(checkpoint=2), Recomputation.ALL)
        assert sum(name.startswith("pow") for name in found.stored) == 1
        assert sum(name.startswith("pow") for name in found.again) == 4

    def test_norms_only(self) -> None:
        """day03: every convolution's output stays, norms and the ReLU behind them run again."""
        graph = day03()
        found = kept(graph, Recomputation.NORM_ONLY)
        assert sum(name.startswith("convolution") for name in found.stored) == 104
        assert not any(name.startswith("convolution") for name in found.again)
        assert sum(name.startswith("native_batch_norm") for name in found.again) == 104

    @pytest.mark.slow
    def test_standard_cuts_residual_networks_between_their_blocks(self) -> None:
        """A block's output lies where its last norm's did: addition and ReLU work in place."""
        found = kept(mlperf_resnet50(checkpoints=False), Recomputation.STANDARD)
        assert not any(name.startswith("convolution") for name in found.stored)
        assert 3 <= sum(name.startswith("native_batch_norm") for name in found.stored) <= 8

    def test_inference_keeps_nothing(self) -> None:
        graph = traced(nn.Linear(8, 8), X, training=False)
        assert kept(graph, Recomputation.ALL, training=False) == Recomputed(frozenset(), frozenset())


class TestDropout:
    """x + dropout(linear(x)): the gradient of the dropout needs its mask and not the linear layer's result."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.dropout = nn.Linear(8, 8), nn.Dropout(0.1)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.dropout(self.layer(x))

    def graph(self) -> Graph:
        return traced(Trained(self.Residual()), X)

    @pytest.mark.parametrize("mode", [Recomputation.NONE, Recomputation.ALL])
    def test_the_mask_is_drawn_again_and_never_stored(self, mode: Recomputation) -> None:
        found = kept(self.graph(), mode)
        assert any(name.startswith("bernoulli") for name in found.again)
        assert not any(name.startswith(("bernoulli", "empty_like")) for name in found.stored)

    def test_the_layer_before_it_does_not_run_again_for_the_shape_of_the_mask(self) -> None:
        assert not any(name.startswith("addmm") for name in kept(self.graph(), Recomputation.ALL).again)

    def test_nothing_of_the_mask_is_held_for_the_backward_pass(self) -> None:
        program = Program(step_of(self.graph()), training=True)
        held = held_tensors(program, kept_for_backward(program))
        assert [each.tensor.name for each in held] == ["input_0"]


class TestRules:
    @pytest.mark.parametrize("mode", Recomputation)
    def test_all_that_the_backward_pass_reads_is_there(self, mode: Recomputation) -> None:
        """Every op wanted by the backward pass is stored or runs again, and what runs again finds its operands."""
        graph = chain(ipus=2)
        found = kept(graph, mode)
        everything = kept(graph, Recomputation.NONE).stored
        assert everything <= found.stored | found.again

    @pytest.mark.parametrize("mode", Recomputation)
    def test_nothing_is_both(self, mode: Recomputation) -> None:
        found = kept(day03(), mode)
        assert not found.stored & found.again

    def test_only_forward_ops_run_again(self) -> None:
        graph = day03()
        assert kept(graph, Recomputation.ALL).again <= forward_ops(graph)


class TestSequence:
    def passes(self, graph: Graph, stage: int, mode: Recomputation = Recomputation.PIPELINE) -> list[Pass]:
        """Return the passes of one stage, each stretch of equal ones once."""
        program = Program(step_of(graph), training=True, recomputation=mode)
        during = [run.during for run in sequence_of(program) if run.stage == stage]
        return [each for place, each in enumerate(during) if place == 0 or during[place - 1] is not each]

    def test_recomputation_and_backward_pass_alternate_from_checkpoint_to_checkpoint(self) -> None:
        """One checkpoint makes two segments; the last layer's square needs no second run of its own output."""
        found = self.passes(chain(checkpoint=2), stage=0, mode=Recomputation.ALL)
        assert found[0] is Pass.FORWARD
        assert found[-4:] == [Pass.RECOMPUTE, Pass.BACKWARD, Pass.RECOMPUTE, Pass.BACKWARD]

    def test_a_pipeline_recomputes_on_every_stage_but_the_last(self) -> None:
        graph = chain(ipus=3)
        assert self.passes(graph, stage=0) == [Pass.FORWARD, Pass.RECOMPUTE, Pass.BACKWARD]
        assert self.passes(graph, stage=2) == [Pass.FORWARD, Pass.BACKWARD]

    @pytest.mark.parametrize("mode", Recomputation)
    def test_every_op_runs_once_and_those_that_run_again_twice(self, mode: Recomputation) -> None:
        graph = chain(ipus=2, checkpoint=1)
        program = Program(step_of(graph), training=True, recomputation=mode)
        runs = [run.op for run in sequence_of(program)]
        again = kept_for_backward(program).again
        assert sorted(runs) == sorted([op.name for op in program.step.ops] + list(again))


class TestDefault:
    """PopTorch recomputes pipelines of several IPUs in training, unless the program says otherwise."""

    @pytest.mark.parametrize(
        ("ipus", "now", "execution", "on", "expected"),
        [
            (1, Recomputation.NONE, Execution.PIPELINED, 2, Recomputation.PIPELINE),
            (2, Recomputation.PIPELINE, Execution.PIPELINED, 1, Recomputation.NONE),
            (2, Recomputation.PIPELINE, Execution.SHARDED, 2, Recomputation.NONE),
            (2, Recomputation.NONE, Execution.PIPELINED, 3, Recomputation.NONE),  # asked for: it stays
            (1, Recomputation.ALL, Execution.PIPELINED, 2, Recomputation.ALL),
        ],
    )
    def test_a_program_follows_it_until_it_asks_for_something_else(
        self, ipus: int, now: Recomputation, execution: Execution, on: int, expected: Recomputation
    ) -> None:
        program = Program(step_of(chain(ipus)), True, recomputation=now)
        assert recomputation_over(program, execution, on) is expected

    def test_inference_never_recomputes(self) -> None:
        program = Program(step_of(chain()), False)
        assert recomputation_over(program, Execution.PIPELINED, 2) is Recomputation.NONE
