"""From when until when tensors are in memory: the rules of liveness, and of running ops again."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from memory_support import graph_of, memory_for, squares, total
from torch import Tensor, nn
from tracing_support import traced

from ipu_model.capture import tracing
from ipu_model.capture.graph import Graph
from ipu_model.predict.profile import IpuMemory, LivenessStep
from ipu_model.predict.program import Execution, Recomputation
from published.building import begin_block

WIDTH, BATCH, TILES = 128, 4096, 1472  # weights are small beside activations
ON_TILE = WIDTH * BATCH * 4 / TILES  # bytes of one activation on a tile, spread evenly


def data(step: LivenessStep) -> float:
    """Return how many activations' worth of tensors are live, temporary data left out."""
    return (step.bytes_on_tile - step.temporary_bytes) / ON_TILE


def phases(memory: IpuMemory, phase: str) -> list[float]:
    return [data(step) for step in memory.liveness if step.phase == phase]


class TestHill:
    """Training climbs during the forward pass, is highest where it ends, and falls during the backward pass."""

    DEPTH = 6

    def memory(self) -> IpuMemory:
        return memory_for(squares(self.DEPTH, width=WIDTH, batch=BATCH))[0]

    def test_forward_climbs(self) -> None:
        """The input and one result of each layer: rectifiers work in place."""
        forward = [data(step) for step in self.memory().liveness if step.node.startswith("relu")]
        assert forward == pytest.approx([layer + 2 for layer in range(self.DEPTH)], rel=0.05)

    def test_backward_falls(self) -> None:
        backward = [data(step) for step in self.memory().liveness if step.node.startswith("threshold_backward")]
        assert backward[1:] == sorted(backward[1:], reverse=True)  # the first gradient is one number, broadcast

    def test_what_is_returned_waits_for_the_end(self) -> None:
        """The last op adds a small gradient to its accumulator; the result that goes to the host is still there."""
        assert phases(self.memory(), "backward")[-1] == pytest.approx(1, abs=0.2)

    def test_inference_keeps_what_the_next_op_reads(self) -> None:
        layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(self.DEPTH)))
        graph = traced(layers.eval(), torch.zeros(BATCH, WIDTH), training=False)
        memory = memory_for(graph, training=False, optimiser=None, accumulation=1)[0]
        assert max(map(data, memory.liveness)) == pytest.approx(2, rel=0.05)


class TestStorage:
    def test_views_are_not_tensors_of_their_own(self) -> None:
        class Viewed(nn.Module):
            def __init__(self, flattens: bool) -> None:
                super().__init__()
                self.layer, self.flattens = nn.Linear(WIDTH, WIDTH), flattens

            def forward(self, x: Tensor) -> Tensor:
                y = self.layer(x).sigmoid()
                return (y.view(-1).view(BATCH, 2, -1) if self.flattens else y).sigmoid()

        plain, viewed = (memory_for(graph_of(Viewed(f), torch.zeros(BATCH, WIDTH)))[0] for f in (False, True))
        assert total(viewed, "activations") == total(plain, "activations")

    def test_a_type_that_is_another_only_on_the_host_makes_no_tensor(self) -> None:
        """64-bit numbers do not exist on the device: converting 32-bit ones to them changes nothing."""

        class Chosen(nn.Module):
            def __init__(self, converts: bool) -> None:
                super().__init__()
                self.table, self.converts = nn.Embedding(10, 16), converts

            def forward(self, x: Tensor) -> Tensor:
                return self.table(x.long() if self.converts else x) * x[:, None]

        numbers = torch.zeros(2**20, dtype=torch.int32)
        plain, converted = (memory_for(graph_of(Chosen(c), numbers))[0] for c in (False, True))
        assert max(phases(converted, "forward")) == max(phases(plain, "forward"))

    def test_gradients_of_a_convolution_come_one_by_one(self) -> None:
        layers = nn.Sequential(*(nn.Conv2d(256, 256, 3, padding=1, bias=False) for _ in range(2)))
        memory = memory_for(graph_of(layers, torch.zeros(1, 256, 4, 4)))[0]
        first, second = [s for s in memory.liveness if s.node == "convolution_backward_default"][:2]
        weights = 256 * 256 * 9 * 4 / TILES
        assert (data(second) - data(first)) * ON_TILE == pytest.approx(weights, rel=0.1)

    def test_constants_are_always_there(self) -> None:
        class Shifted(nn.Module):
            steps: Tensor

            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("steps", torch.arange(WIDTH, dtype=torch.int32))
                self.layer = nn.Linear(WIDTH, WIDTH)

            def forward(self, x: Tensor) -> Tensor:
                return self.layer(x + self.steps)

        memory = memory_for(graph_of(Shifted(), torch.zeros(BATCH, WIDTH)))[0]
        constants = [c for c in memory.categories if c.name == "constants"]
        assert [(c.total_bytes, c.always_live) for c in constants] == [(WIDTH * 4, True)]

    def test_inputs_are_buffers_of_their_own(self) -> None:
        graph = traced(nn.Linear(WIDTH, WIDTH), torch.zeros(BATCH, WIDTH), training=False)
        memory = memory_for(graph, training=False, optimiser=None, accumulation=1)[0]
        assert total(memory, "I/O buffers") == total(memory, "activations") == WIDTH * BATCH * 4

    def test_a_maximum_keeps_no_indices(self) -> None:
        """The gradient compares inputs and outputs again: both live, no third tensor of 64-bit numbers."""
        graph = graph_of(nn.Sequential(nn.Conv2d(16, 16, 1), nn.MaxPool2d(2)), torch.zeros(16, 16, 32, 32))
        images, pooled = 16 * 16 * 32 * 32 * 4, 16 * 16 * 16 * 16 * 4
        memory = memory_for(graph)[0]
        step = next(i for i, s in enumerate(memory.liveness) if "max_pool2d_with_indices_backward" in s.node)
        before = memory.liveness[step]
        # Model's input, input and result of the pool, gradients of both.
        assert (before.bytes_on_tile - before.temporary_bytes) * TILES == pytest.approx(
            images + 2 * (images + pooled), rel=0.05
        )

    def test_a_dropout_draws_its_mask_again(self) -> None:
        layers = [nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5), nn.Linear(WIDTH, WIDTH)]
        with_mask = memory_for(graph_of(nn.Sequential(*layers), torch.zeros(BATCH, WIDTH)))[0]
        at_the_end = data([s for s in with_mask.liveness if s.phase == "forward"][-1])
        assert at_the_end == pytest.approx(3, rel=0.1)  # input, dropped and last result; no mask


class TestRecomputation:
    def checkpointed(self, every: int) -> Graph:
        layers = squares_with_checkpoints(12, every)
        return graph_of(layers, torch.zeros(BATCH, WIDTH))

    def test_runs_what_a_backward_op_needs_and_when_it_needs_it(self) -> None:
        memory = memory_for(self.checkpointed(4), recomputation=Recomputation.ALL)[0]
        order = [step.phase for step in memory.liveness if step.phase in ("recompute", "backward")]
        stretches = [order[0], *(b for a, b in pairwise(order) if a != b)]
        assert stretches == ["backward", *["recompute", "backward"] * 3]

    def test_runs_no_op_a_third_time(self) -> None:
        memory = memory_for(self.checkpointed(4), recomputation=Recomputation.ALL)[0]
        again = [step.node for step in memory.liveness if step.phase == "recompute" and step.node.startswith("relu")]
        assert len(again) == len(set(again)) == 12 - 3

    def test_peak_is_checkpoints_and_one_segment(self) -> None:
        """U-shaped in the number of segments k: k checkpoints and n / k results (guide notes, 5.3)."""
        peak = {
            every: max(map(data, memory_for(self.checkpointed(every), recomputation=Recomputation.ALL)[0].liveness))
            for every in (1, 3, 4, 12)
        }
        assert peak[3] < peak[1]
        assert peak[4] < peak[12]
        # input, three checkpoints, three results of a segment, gradients in and out
        assert peak[4] == pytest.approx(1 + 3 + 3 + 2, abs=1.5)

    def test_without_checkpoints_it_moves_the_hill_but_does_not_lower_it(self) -> None:
        graph = squares(6, width=WIDTH, batch=BATCH)
        plain, again = (memory_for(graph, recomputation=r)[0] for r in (Recomputation.NONE, Recomputation.ALL))
        assert max(phases(again, "forward")) < max(phases(plain, "forward")) / 1.5
        assert max(phases(again, "backward")) == pytest.approx(max(phases(plain, "backward")), rel=0.05)


def squares_with_checkpoints(depth: int, every: int) -> nn.Module:
    """Return equal layers with a checkpoint behind every `every`-th."""
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU(inplace=True)) for _ in range(depth)]
    for layer in layers[every - 1 :: every]:
        layer.register_forward_hook(_keep)
    return nn.Sequential(*layers)


def _keep(module: nn.Module, inputs: object, output: Tensor) -> None:
    trace = tracing.current()
    if trace is not None:
        trace.hint(output, recomputation_checkpoint=True)


class TestPipeline:
    """Forward and backward pass of a stage work on different micro-batches: their tensors do not meet."""

    def test_the_forward_pass_lives_apart_from_the_backward_pass(self) -> None:
        graph = squares(8, width=WIDTH, batch=BATCH, ipus=2)
        memory = memory_for(graph, recomputation=Recomputation.PIPELINE)[0]
        # A layer's input and result, the input for its stash, three slots, the gradient from IPU 1.
        assert max(phases(memory, "forward")) == pytest.approx(2 + 1 + 3 + 1, rel=0.05)
        # At the end three slots are left, and the result that goes to IPU 1 with the next copy.
        assert phases(memory, "backward")[-1] == pytest.approx(3 + 1, abs=0.2)

    def test_the_last_stage_goes_straight_on(self) -> None:
        graph = squares(8, width=WIDTH, batch=BATCH, ipus=2)
        pipelined = memory_for(graph, recomputation=Recomputation.NONE)[1]
        alone = memory_for(squares(4, width=WIDTH, batch=BATCH))[0]
        assert [step.node.rstrip("_0123456789") for step in pipelined.liveness if step.phase == "forward"] == [
            step.node.rstrip("_0123456789") for step in alone.liveness if step.phase == "forward"
        ]
        assert max(phases(pipelined, "forward")) == pytest.approx(max(phases(alone, "forward")), rel=0.05)

    def test_sharding_keeps_every_tensor_once(self) -> None:
        graph = squares(8, width=WIDTH, batch=BATCH, ipus=2)
        memory = memory_for(graph, execution=Execution.SHARDED, recomputation=Recomputation.NONE)[0]
        assert max(phases(memory, "backward")) <= 5 + 2.1  # input, four results, gradients in and out


def test_gradients_of_weights_die_when_they_are_added_up() -> None:
    """Each of twelve is there for two steps: the op that makes it, and its addition to the accumulator."""
    memory = memory_for(squares(12, width=1024, batch=1), accumulation=4)[0]
    weights = 1024 * 1024 * 4 / TILES
    live = [step.bytes_on_tile - step.temporary_bytes for step in memory.liveness]
    assert sum(held >= weights for held in live) == 2 * 12
    assert max(live) < 2 * weights


def test_a_weight_of_another_ipu_is_copied() -> None:
    """Layers on two of three IPUs share one weight, which lives on the first; the copy is none to stash."""

    class Tied(nn.Module):
        def __init__(self, ties: bool) -> None:
            super().__init__()
            self.first, self.second, self.third = (nn.Linear(1024, 1024, bias=False) for _ in range(3))
            begin_block(self.second, 1)
            begin_block(self.third, 2)
            if ties:
                self.second.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.third(self.second(self.first(x)))

    apart, tied = (memory_for(graph_of(Tied(t), torch.zeros(4, 1024))) for t in (False, True))
    assert [total(m, "variables") for m in apart] == [2**22, 2**22, 2**22]
    assert [total(m, "variables") for m in tied] == [2**22, 0, 2**22]
    assert total(tied[1], "stashes") == total(apart[1], "stashes")
    copied = max(data(step) for step in tied[1].liveness) - max(data(step) for step in apart[1].liveness)
    assert copied * ON_TILE == pytest.approx(2**22 / TILES, rel=0.1)


def test_unused_ipus_are_empty() -> None:
    layers = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    begin_block(layers[1], 2)
    memory = memory_for(graph_of(layers, torch.zeros(4, 64)))
    assert [m.ipu for m in memory] == [0, 1, 2]
    assert [m.max_tile_bytes > 0 for m in memory] == [True, False, True]
    assert len(memory[1].tiles) == TILES
