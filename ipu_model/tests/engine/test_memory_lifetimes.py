"""From when until when tensors are in memory: the rules of liveness, and of running ops again."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from memory_support import graph_of, memory_for, squares, total
from torch import Tensor, nn
from tracing_support import traced

from ipu_model.predict.profile import IpuMemory, LivenessStep
from ipu_model.predict.program import Execution, Recomputation
from published.building import begin_block, checkpoint

WIDTH, BATCH, TILES = 128, 4096, 1472  # weights are small beside activations
ON_TILE = WIDTH * BATCH * 4 / TILES  # bytes of one activation on a tile, spread evenly
DEPTH = 6
ROWS = torch.zeros(BATCH, WIDTH)


class Computed(nn.Module):
    """A layer [WIDTH] -> [WIDTH] whose result goes through a function, or a function of the input and the layer."""

    def __init__(self, function: object, layer: nn.Module | None = None) -> None:
        super().__init__()
        self.layer, self.function = layer or nn.Linear(WIDTH, WIDTH), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer, x)


def data(step: LivenessStep) -> float:
    """Return how many activations' worth of tensors are live, temporary data left out."""
    return (step.bytes_on_tile - step.temporary_bytes) / ON_TILE


def phases(memory: IpuMemory, phase: str) -> list[float]:
    return [data(step) for step in memory.liveness if step.phase == phase]


def highest(memory: IpuMemory) -> float:
    return max(map(data, memory.liveness))


def infer(module: nn.Module, x: Tensor) -> IpuMemory:
    graph = traced(module.eval(), x, training=False)
    return memory_for(graph, training=False, optimiser=None, accumulation=1)[0]


def test_training_climbs_in_the_forward_pass_and_falls_in_the_backward_pass() -> None:
    """It is highest where the forward pass ends."""
    memory = memory_for(squares(DEPTH, width=WIDTH, batch=BATCH))[0]
    forward = [data(step) for step in memory.liveness if step.node.startswith("relu")]
    # The input and one result of each layer: rectifiers work in place.
    assert forward == pytest.approx([layer + 2 for layer in range(DEPTH)], rel=0.05)
    backward = [data(step) for step in memory.liveness if step.node.startswith("threshold_backward")]
    assert backward[1:] == sorted(backward[1:], reverse=True)  # the first gradient is one number, broadcast
    # The last op adds a small gradient to its accumulator; the result that goes to the host is still there.
    assert phases(memory, "backward")[-1] == pytest.approx(1, abs=0.2)


def test_inference_keeps_what_the_next_op_reads_and_inputs_are_buffers_of_their_own() -> None:
    memory = infer(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))), ROWS)
    assert highest(memory) == pytest.approx(2, rel=0.05)
    memory = infer(nn.Linear(WIDTH, WIDTH), ROWS)
    assert total(memory, "I/O buffers") == total(memory, "activations") == WIDTH * BATCH * 4


class TestStorage:
    def test_views_are_not_tensors_of_their_own(self) -> None:
        plain = Computed(lambda layer, x: layer(x).sigmoid().sigmoid())
        viewed = Computed(lambda layer, x: layer(x).sigmoid().view(-1).view(BATCH, 2, -1).sigmoid())
        first, second = (memory_for(graph_of(module, ROWS))[0] for module in (plain, viewed))
        assert total(second, "activations") == total(first, "activations")

    def test_a_type_that_is_another_only_on_the_host_makes_no_tensor(self) -> None:
        """64-bit numbers do not exist on the device: converting 32-bit ones to them changes nothing."""
        plain = Computed(lambda table, x: table(x) * x[:, None], nn.Embedding(10, 16))
        converted = Computed(lambda table, x: table(x.long()) * x[:, None], nn.Embedding(10, 16))
        numbers = torch.zeros(2**20, dtype=torch.int32)
        first, second = (memory_for(graph_of(module, numbers))[0] for module in (plain, converted))
        assert max(phases(second, "forward")) == max(phases(first, "forward"))

    def test_gradients_of_a_convolution_come_one_by_one(self) -> None:
        layers = nn.Sequential(*(nn.Conv2d(256, 256, 3, padding=1, bias=False) for _ in range(2)))
        memory = memory_for(graph_of(layers, torch.zeros(1, 256, 4, 4)))[0]
        first, second = [s for s in memory.liveness if s.node == "convolution_backward_default"][:2]
        weights = 256 * 256 * 9 * 4 / TILES
        assert (data(second) - data(first)) * ON_TILE == pytest.approx(weights, rel=0.1)

    def test_constants_are_always_there(self) -> None:
        module = Computed(lambda layer, x: layer(x + module.steps))
        module.register_buffer("steps", torch.arange(WIDTH, dtype=torch.int32))
        memory = memory_for(graph_of(module, ROWS))[0]
        constants = [c for c in memory.categories if c.name == "constants"]
        assert [(c.total_bytes, c.always_live) for c in constants] == [(WIDTH * 4, True)]

    def test_a_maximum_keeps_no_indices(self) -> None:
        """The gradient compares inputs and outputs again: both live, no third tensor of 64-bit numbers."""
        graph = graph_of(nn.Sequential(nn.Conv2d(16, 16, 1), nn.MaxPool2d(2)), torch.zeros(16, 16, 32, 32))
        images, pooled = 16 * 16 * 32 * 32 * 4, 16 * 16 * 16 * 16 * 4
        before = next(s for s in memory_for(graph)[0].liveness if "max_pool2d_with_indices_backward" in s.node)
        # Model's input, input and result of the pool, gradients of both.
        assert data(before) * ON_TILE * TILES == pytest.approx(images + 2 * (images + pooled), rel=0.05)

    def test_a_dropout_draws_its_mask_again(self) -> None:
        layers = [nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5), nn.Linear(WIDTH, WIDTH)]
        at_the_end = phases(memory_for(graph_of(nn.Sequential(*layers), ROWS))[0], "forward")[-1]
        assert at_the_end == pytest.approx(3, rel=0.1)  # input, dropped and last result; no mask


class TestRecomputation:
    def checkpointed(self, every: int) -> IpuMemory:
        """Twelve equal layers with a checkpoint behind every `every`-th, all others run again."""
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU(inplace=True)) for _ in range(12)]
        for layer in layers[every - 1 :: every]:
            checkpoint(layer)
        return memory_for(graph_of(nn.Sequential(*layers), ROWS), recomputation=Recomputation.ALL)[0]

    def test_ops_run_again_once_when_a_backward_op_needs_them(self) -> None:
        memory = self.checkpointed(4)
        order = [step.phase for step in memory.liveness if step.phase in ("recompute", "backward")]
        stretches = [order[0], *(b for a, b in pairwise(order) if a != b)]
        assert stretches == ["backward", *["recompute", "backward"] * 3]
        again = [step.node for step in memory.liveness if step.phase == "recompute" and step.node.startswith("relu")]
        assert len(again) == len(set(again)) == 12 - 3

    def test_the_peak_is_checkpoints_and_one_segment(self) -> None:
        """U-shaped in the number of segments k: k checkpoints and n / k results (guide notes, 5.3)."""
        peak = {every: highest(self.checkpointed(every)) for every in (1, 3, 4, 12)}
        assert peak[3] < peak[1]
        assert peak[4] < peak[12]
        # input, three checkpoints, three results of a segment, gradients in and out
        assert peak[4] == pytest.approx(1 + 3 + 3 + 2, abs=1.5)

    def test_without_checkpoints_it_moves_the_hill_but_does_not_lower_it(self) -> None:
        graph = squares(6, width=WIDTH, batch=BATCH)
        plain, again = (memory_for(graph, recomputation=r)[0] for r in (Recomputation.NONE, Recomputation.ALL))
        assert max(phases(again, "forward")) < max(phases(plain, "forward")) / 1.5
        assert max(phases(again, "backward")) == pytest.approx(max(phases(plain, "backward")), rel=0.05)


class TestTwoIpus:
    """In a pipeline, both passes of a stage work on different micro-batches: their tensors do not meet."""

    GRAPH = squares(8, width=WIDTH, batch=BATCH, ipus=2)

    def test_the_forward_pass_lives_apart_from_the_backward_pass(self) -> None:
        memory = memory_for(self.GRAPH, recomputation=Recomputation.PIPELINE)[0]
        # A layer's input and result, the input for its stash, three slots, the gradient from IPU 1.
        assert max(phases(memory, "forward")) == pytest.approx(2 + 1 + 3 + 1, rel=0.05)
        # At the end three slots are left, and the result that goes to IPU 1 with the next copy.
        assert phases(memory, "backward")[-1] == pytest.approx(3 + 1, abs=0.2)

    def test_the_last_stage_goes_straight_on(self) -> None:
        def forward(memory: IpuMemory) -> list[str]:
            return [step.node.rstrip("_0123456789") for step in memory.liveness if step.phase == "forward"]

        pipelined = memory_for(self.GRAPH, recomputation=Recomputation.NONE)[1]
        alone = memory_for(squares(4, width=WIDTH, batch=BATCH))[0]
        assert forward(pipelined) == forward(alone)
        assert max(phases(pipelined, "forward")) == pytest.approx(max(phases(alone, "forward")), rel=0.05)

    def test_sharding_keeps_every_tensor_once(self) -> None:
        memory = memory_for(self.GRAPH, execution=Execution.SHARDED, recomputation=Recomputation.NONE)[0]
        assert max(phases(memory, "backward")) <= 5 + 2.1  # input, four results, gradients in and out


def test_gradients_of_weights_die_when_they_are_added_up() -> None:
    """Each of twelve is there for two steps: the op that makes it, and its addition to the accumulator."""
    memory = memory_for(squares(12, width=1024, batch=1), accumulation=4)[0]
    weights = 1024 * 1024 * 4 / TILES
    live = [step.bytes_on_tile - step.temporary_bytes for step in memory.liveness]
    assert sum(size >= weights for size in live) == 2 * 12
    assert max(live) < 2 * weights


def test_a_weight_of_another_ipu_is_copied() -> None:
    """Layers on two of three IPUs share one weight, which lives on the first; the copy is none to stash."""

    def network(*, ties: bool) -> nn.Module:
        layers = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(3)))
        begin_block(layers[1], 1)
        begin_block(layers[2], 2)
        if ties:
            layers[1].weight = layers[0].weight
        return layers

    apart, tied = (memory_for(graph_of(network(ties=ties), torch.zeros(4, 1024))) for ties in (False, True))
    assert [total(ipu, "variables") for ipu in apart] == [2**22, 2**22, 2**22]
    assert [total(ipu, "variables") for ipu in tied] == [2**22, 0, 2**22]
    assert total(tied[1], "stashes") == total(apart[1], "stashes")
    assert (highest(tied[1]) - highest(apart[1])) * ON_TILE == pytest.approx(2**22 / TILES, rel=0.1)


def test_unused_ipus_are_empty() -> None:
    layers = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    begin_block(layers[1], 2)
    memory = memory_for(graph_of(layers, torch.zeros(4, 64)))
    assert [(ipu.ipu, ipu.max_tile_bytes > 0) for ipu in memory] == [(0, True), (1, False), (2, True)]
    assert len(memory[1].tiles) == TILES
