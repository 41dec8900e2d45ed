"""From when until when tensors are in memory: liveness, running ops again, and what a pipeline stashes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from net_support import (
    TILES,
    Net,
    Trained,
    calling,
    graph_of,
    memory_for,
    memory_of_program,
    program_of,
    squares,
    stepped,
    total,
    traced,
)
from torch import Tensor, nn

from ipu_model.capture.describe import step_of
from ipu_model.predict import profile_program
from ipu_model.predict.calibration import calibrated
from ipu_model.predict.order import device_bytes, held_tensors, order_of
from ipu_model.predict.profile import IpuMemory, LivenessStep
from ipu_model.predict.program import Execution, Location, Locations, Program, Recomputation
from ipu_model.predict.recomputation import Pass, Recomputed, kept_for_backward, sequence_of
from ipu_model.step import Phase, Step
from published.building import begin_block, checkpoint
from published.convolutional import day03, mlperf_resnet50

WIDTH, BATCH = 128, 4096  # weights are small beside activations
ON_TILE = WIDTH * BATCH * 4 / TILES  # bytes of one activation on a tile, spread evenly
DEPTH = 6
ROWS = torch.zeros(BATCH, WIDTH)


def data(step: LivenessStep) -> float:
    """Return how many activations' worth of tensors are live, temporary data left out."""
    return (step.bytes_on_tile - step.temporary_bytes) / ON_TILE


def phases(memory: IpuMemory, phase: str) -> list[float]:
    return [data(step) for step in memory.liveness if step.phase == phase]


def highest(memory: IpuMemory) -> float:
    return max(map(data, memory.liveness))


def of(function: Callable[..., Tensor], layer: nn.Module | None = None, x: Tensor = ROWS) -> IpuMemory:
    """Return the memory of a function of a layer, which is [WIDTH] -> [WIDTH] unless given, and its input."""
    return memory_for(graph_of(calling(function, layer or nn.Linear(WIDTH, WIDTH)), x))[0]


def of_layers(*layers: nn.Module, x: Tensor = ROWS) -> IpuMemory:
    return memory_for(graph_of(nn.Sequential(*layers), x))[0]


class TestStorage:
    def test_training_climbs_in_the_forward_pass_and_falls_in_the_backward_pass(self) -> None:
        """It is highest where the forward pass ends."""
        memory = memory_for(squares(DEPTH, width=WIDTH, batch=BATCH))[0]
        forward = [data(step) for step in memory.liveness if step.node.startswith("relu")]
        # The input and one result of each layer: rectifiers work in place.
        assert forward == pytest.approx([layer + 2 for layer in range(DEPTH)], rel=0.05)
        backward = [data(step) for step in memory.liveness if step.node.startswith("threshold_backward")]
        assert backward[1:] == sorted(backward[1:], reverse=True)  # the first gradient is one number, broadcast
        # The last op adds a small gradient to its accumulator; the result that goes to the host is still there.
        assert phases(memory, "backward")[-1] == pytest.approx(1, abs=0.2)

    def test_inference_keeps_what_the_next_op_reads_and_inputs_are_buffers_of_their_own(self) -> None:
        deep, linear = (
            memory_for(traced(module.eval(), ROWS, training=False), training=False, optimiser=None, accumulation=1)[0]
            for module in (nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))), nn.Linear(WIDTH, WIDTH))
        )
        assert highest(deep) == pytest.approx(2, rel=0.05)
        assert total(linear, "I/O buffers") == total(linear, "activations") == WIDTH * BATCH * 4

    def test_views_and_types_that_are_others_only_on_the_host_make_no_tensors(self) -> None:
        plain = of(lambda layer, x: layer(x).sigmoid().sigmoid())
        viewed = of(lambda layer, x: layer(x).sigmoid().view(-1).view(BATCH, 2, -1).sigmoid())
        assert total(viewed, "activations") == total(plain, "activations")
        # 64-bit numbers do not exist on the device: converting 32-bit ones to them changes nothing.
        numbers = torch.zeros(2**20, dtype=torch.int32)
        plain = of(lambda table, x: table(x) * x[:, None], nn.Embedding(10, 16), numbers)
        converted = of(lambda table, x: table(x.long()) * x[:, None], nn.Embedding(10, 16), numbers)
        assert max(phases(converted, "forward")) == max(phases(plain, "forward"))

    def test_gradients_of_a_convolution_come_one_by_one_and_constants_are_always_there(self) -> None:
        layers = (nn.Conv2d(256, 256, 3, padding=1, bias=False) for _ in range(2))
        memory = of_layers(*layers, x=torch.zeros(1, 256, 4, 4))
        first, second = [s for s in memory.liveness if s.node == "convolution_backward_default"][:2]
        weights = 256 * 256 * 9 * 4 / TILES
        assert (data(second) - data(first)) * ON_TILE == pytest.approx(weights, rel=0.1)
        linear = nn.Linear(WIDTH, WIDTH)
        linear.register_buffer("steps", torch.arange(WIDTH, dtype=torch.int32))
        memory = of(lambda layer, x: layer(x + layer.steps), linear)
        constants = [c for c in memory.categories if c.name == "constants"]
        assert [(c.total_bytes, c.always_live) for c in constants] == [(WIDTH * 4, True)]

    def test_a_maximum_keeps_no_indices_and_a_dropout_draws_its_mask_again(self) -> None:
        """The gradient compares inputs and outputs again: both live, no third tensor of 64-bit numbers."""
        images, pooled = 16 * 16 * 32 * 32 * 4, 16 * 16 * 16 * 16 * 4
        memory = of_layers(nn.Conv2d(16, 16, 1), nn.MaxPool2d(2), x=torch.zeros(16, 16, 32, 32))
        before = next(s for s in memory.liveness if "max_pool2d_with_indices_backward" in s.node)
        # Model's input, input and result of the pool, gradients of both.
        assert data(before) * ON_TILE * TILES == pytest.approx(images + 2 * (images + pooled), rel=0.05)
        dropout = of_layers(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5), nn.Linear(WIDTH, WIDTH))
        at_the_end = phases(dropout, "forward")[-1]
        assert at_the_end == pytest.approx(3, rel=0.1)  # input, dropped and last result; no mask

    def test_gradients_of_weights_die_when_they_are_added_up(self) -> None:
        """Each of twelve is there for two steps: the op that makes it, and its addition to the accumulator."""
        memory = memory_for(squares(12, width=1024, batch=1), accumulation=4)[0]
        weights = 1024 * 1024 * 4 / TILES
        live = [step.bytes_on_tile - step.temporary_bytes for step in memory.liveness]
        assert sum(size >= weights for size in live) == 2 * 12
        assert max(live) < 2 * weights

    def test_gradients_of_a_tied_weight_are_added_up_one_by_one(self) -> None:
        """With an accumulator, a table that is read and multiplied needs one gradient of its size; without, three.

        The lookup's is added row by row (PopART, SparseAccumulate), the product's as soon as it is there.
        """

        def language(table: nn.Embedding, tokens: Tensor) -> Tensor:
            return table(tokens) @ table.weight.t()

        tied = graph_of(calling(language, nn.Embedding(8192, 512)), torch.zeros(4, dtype=torch.int32))
        table = 8192 * 512 * 4 / TILES
        most = [
            max(step.bytes_on_tile - step.temporary_bytes for step in memory_for(tied, accumulation=n)[0].liveness)
            for n in (2, 1)
        ]
        assert most[0] == pytest.approx(table, rel=0.1)
        assert most[1] == pytest.approx(3 * table, rel=0.1)


class TestRecomputation:
    def checkpointed(self, every: int) -> IpuMemory:
        """Twelve equal layers with a checkpoint behind every `every`-th, all others run again."""
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU(inplace=True)) for _ in range(12)]
        for layer in layers[every - 1 :: every]:
            checkpoint(layer)
        return memory_for(graph_of(nn.Sequential(*layers), ROWS), recomputation=Recomputation.ALL)[0]

    def test_the_peak_is_checkpoints_and_one_segment(self) -> None:
        """U-shaped in the number of segments k: k checkpoints and n / k results (guide notes, 5.3)."""
        peak = {every: highest(self.checkpointed(every)) for every in (1, 3, 4, 12)}
        assert peak[3] < peak[1]
        assert peak[4] < peak[12]
        # input, three checkpoints, three results of a segment, gradients in and out
        assert peak[4] == pytest.approx(1 + 3 + 3 + 2, abs=1.5)


class TestSeveralIpus:
    """In a pipeline, both passes of a stage work on different micro-batches: their tensors do not meet."""

    GRAPH = squares(8, width=WIDTH, batch=BATCH, ipus=2)

    def test_the_forward_pass_lives_apart_from_the_backward_pass(self) -> None:
        memory = memory_for(self.GRAPH, recomputation=Recomputation.PIPELINE)[0]
        # A layer's input and result, the input for its stash, three slots, the gradient from IPU 1.
        assert max(phases(memory, "forward")) == pytest.approx(2 + 1 + 3 + 1, rel=0.05)
        # At the end three slots are left, and the result that goes to IPU 1 with the next copy.
        assert phases(memory, "backward")[-1] == pytest.approx(3 + 1, abs=0.2)

    def test_the_last_stage_goes_straight_on_and_sharding_keeps_every_tensor_once(self) -> None:
        pipelined = memory_for(self.GRAPH, recomputation=Recomputation.NONE)[1]
        alone = memory_for(squares(4, width=WIDTH, batch=BATCH))[0]
        nodes, of_one = (
            [step.node.rstrip("_0123456789") for step in memory.liveness if step.phase == "forward"]
            for memory in (pipelined, alone)
        )
        assert nodes == of_one
        assert max(phases(pipelined, "forward")) == pytest.approx(max(phases(alone, "forward")), rel=0.05)
        memory = memory_for(self.GRAPH, execution=Execution.SHARDED, recomputation=Recomputation.NONE)[0]
        assert max(phases(memory, "backward")) <= 5 + 2.1  # input, four results, gradients in and out

    def test_a_weight_of_another_ipu_is_copied_and_unused_ipus_are_empty(self) -> None:
        """Layers on two of three IPUs share one weight, which lives on the first; the copy is none to stash."""
        memories = []
        for ties in (False, True):
            layers = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(3)))
            begin_block(layers[1], 1)
            begin_block(layers[2], 2)
            layers[1].weight = layers[0 if ties else 1].weight
            memories.append(memory_for(graph_of(layers, torch.zeros(4, 1024))))
        apart, tied = memories
        assert [total(ipu, "variables") for ipu in apart] == [2**22, 2**22, 2**22]
        assert [total(ipu, "variables") for ipu in tied] == [2**22, 0, 2**22]
        assert total(tied[1], "stashes") == total(apart[1], "stashes")
        assert (highest(tied[1]) - highest(apart[1])) * ON_TILE == pytest.approx(2**22 / TILES, rel=0.1)
        # Unused IPUs are empty.
        layers = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
        begin_block(layers[1], 2)
        memory = memory_for(graph_of(layers, torch.zeros(4, 64)))
        assert [(ipu.ipu, ipu.max_tile_bytes > 0) for ipu in memory] == [(0, True), (1, False), (2, True)]
        assert len(memory[1].tiles) == TILES


# --- stashes: what a pipeline keeps of several micro-batches at once (transforms/pipeline.cpp of PopART)

ACTIVATION = 256 * 64 * 4  # bytes of one rectifier's result in fp32
AWAY = Locations(activations=Location(on_chip=False))
FOUR_IPUS, ONE_IPU = (squares(8, width=256, batch=64, ipus=ipus) for ipus in (4, 1))


@pytest.mark.parametrize(
    ("options", "activations"),
    [
        ({"recomputation": Recomputation.PIPELINE}, [7, 5, 3, 0]),  # the input of a stage
        # Its input (read by a weight gradient) and the results of two rectifiers.
        ({"recomputation": Recomputation.NONE}, [7 * 3, 5 * 3, 3 * 3, 0]),
        ({"execution": Execution.SHARDED}, [0, 0, 0, 0]),
        ({"execution": Execution.INTERLEAVED, "recomputation": Recomputation.PIPELINE}, [4, 3, 2, 0]),
        ({"training": False, "optimiser": None, "accumulation": 1}, [0, 0, 0, 0]),
    ],
)
def test_bytes_of_stashes_on_four_ipus(options: dict[str, Any], activations: list[int]) -> None:
    memory = memory_for(FOUR_IPUS, **{"accumulation": 8, **options})
    assert [total(ipu, "stashes") / ACTIVATION for ipu in memory] == activations


def test_off_chip_activations_take_the_stashes_along() -> None:
    """The last IPU has no stash. Its own kept tensors leave the chip between the passes, once each."""
    on_chip = memory_for(FOUR_IPUS, accumulation=8)
    away = program_of(FOUR_IPUS, accumulation=8, locations=AWAY)
    off_chip = memory_of_program(away)
    last = sum(device_bytes(held.tensor) for held in order_of(away).held if held.stage == 3)
    assert last > 0
    assert off_chip.off_chip_bytes == sum(total(ipu, "stashes") for ipu in on_chip) + last
    assert [total(ipu, "stashes") for ipu in off_chip] == [0, 0, 0, 0]


def test_without_a_stash_each_activation_leaves_after_the_forward_pass_and_returns_for_the_backward_pass() -> None:
    """So the tiles of one IPU hold few of them at a time, and streaming memory what the passes move."""
    here = program_of(ONE_IPU)
    away = replace(here, locations=AWAY)
    on_chip, off_chip = memory_of_program(here), memory_of_program(away)
    assert total(on_chip[0], "stashes") == 0
    assert total(on_chip[0], "activations") >= 7 * ACTIVATION
    assert total(off_chip[0], "activations") < 3 * ACTIVATION
    assert off_chip.max_tile_bytes < on_chip.max_tile_bytes
    assert off_chip.off_chip_bytes == sum(device_bytes(held.tensor) for held in order_of(away).held)
    small = Location(on_chip=False, least_off_chip=256 * 64 + 1)
    assert memory_of_program(replace(here, locations=Locations(activations=small))) == on_chip


# --- which forward results wait for the backward pass, and which ops run again instead

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


@pytest.mark.parametrize(
    ("dropped", "draws"),
    [
        (lambda x: F.dropout(x, 0.1), 2),
        (lambda x: x * F.dropout(x.new_ones(8, 1), 0.1), 1),  # stochastic depth: a number for each sample is kept
    ],
)
def test_random_numbers_are_drawn_once_and_those_of_a_dropout_again_in_its_gradient(
    dropped: Callable[[Tensor], Tensor], draws: int
) -> None:
    """PopART's DropoutGradOp draws the mask from the same seed; nothing else is recomputed on a single IPU.

    The fixed cost of such an op, moved from nothing to ten million cycles, comes as often.
    """
    module = Trained(calling(lambda layer, x: dropped(layer(x)), nn.Linear(64, 64)))
    program, ten_million = Program(stepped(module, torch.zeros(8, 64)), True), 1e7
    both = []
    for fixed in (0.0, ten_million):
        calibration = calibrated().with_values({"cost.random_fixed_cycles": fixed})
        device = replace(program.settings.device, calibration=calibration)
        profile = profile_program(replace(program, settings=replace(program.settings, device=device)))
        both.append(profile.device_seconds_per_call * profile.machine.clock_hz)
    assert (both[1] - both[0]) / ten_million == pytest.approx(draws)


def test_the_mask_of_a_dropout_is_drawn_again_and_never_stored() -> None:
    """x + dropout(linear(x)): the gradient needs the mask and not the linear layer's result, whose shape is enough."""
    residual = Net(lambda net, x: x + net.dropout(net.layer(x)), layer=nn.Linear(8, 8), dropout=nn.Dropout(0.1))
    step = stepped(Trained(residual), X)
    for mode, repeats in ((NONE, 0), (ALL, 1)):  # the gradient draws it without an op of its own
        found = kept_by(step, mode)
        stored, again = counted(found.stored, step), counted(found.again, step)
        assert again["bernoulli_"] + again["bernoulli"] == repeats
        assert not stored.keys() & {"bernoulli", "bernoulli_", "empty_like"}
        assert not again["addmm"]
    held = held_tensors(step, kept_by(step, NONE))
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
        runs = [run.op for run in sequence_of(step, found)]
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
    during = [run.during for run in sequence_of(program.step, kept_for_backward(program)) if run.stage == stage]
    stretches = [current for place, current in enumerate(during) if place == 0 or during[place - 1] is not current]
    assert stretches == [Pass(name) for name in passes.split()]
