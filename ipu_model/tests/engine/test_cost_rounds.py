"""Ops made of rounds that depend on one another: sampling, CTC, beam search, textbook algorithms, recurrent layers."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

import pytest
import torch
import torch.nn.functional as F
from cost_support import GC200, calling, costed, distinct_phases
from hand_written import tensor, work_of
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from tracing_support import Net

from ipu_model.capture.device_ops.ctc import beam_search
from ipu_model.capture.device_ops.points import farthest_points, nearest_points
from ipu_model.predict.costs import OpCost
from ipu_model.predict.device import Element, Work
from ipu_model.predict.ops.estimates import Rounds, estimated
from ipu_model.step import FLOAT32, INT32, Phase

SIZES = st.integers(1, 300)


def scaled(function: Callable[..., Tensor], *layers: nn.Module) -> nn.Module:
    """Return a function of layers and inputs, the first of which has a gradient: it is scaled by a weight."""

    def forward(net: Net, x: Tensor, *others: Tensor) -> Tensor:
        return function(*net.layers, x * net.scale, *others)

    return Net(forward, layers=nn.ModuleList(layers), scale=nn.Parameter(torch.ones(1)))


def cost_of(name: str, function: Callable[..., Tensor], *inputs: Tensor, phase: Phase = Phase.FORWARD) -> OpCost:
    costs = costed(scaled(function), *inputs)
    assert not costs.fallbacks
    (op,) = [op for op in costs.of(phase=phase) if name in op.target]
    return op


def cycles(work: Work) -> float:
    return GC200.total(work.cycles)


# --- rules by sizes, on steps written by hand


def farthest(points: int = 4096, features: int = 3, samples: int = 2, picks: int = 64) -> Work:
    cloud = tensor("points", points, features, dtype=FLOAT32)
    return work_of("farthest_points", (samples * picks,), cloud, arguments=((), (picks,) * samples), dtype=INT32)


def nearest(rows: int = 1, others: int = 1, features: int = 3) -> Work:
    tensors = (tensor(name, count, features, dtype=FLOAT32) for name, count in (("x", rows), ("y", others)))
    return work_of("nearest_points", (rows,), *tensors, dtype=INT32)


def ctc(kind: str = "ctc_loss", steps: int = 12, samples: int = 2, labels: int = 5, classes: int = 7, dtype=FLOAT32):
    """Return the work of a loss over 2 x 5 + 1 = 11 states, or of its gradient."""
    log_probabilities = tensor("p", steps, samples, classes, dtype=dtype)
    operands = (log_probabilities, tensor("targets", samples, labels, dtype=INT32))
    if kind == "ctc_loss":
        return work_of(kind, (samples,), *operands, dtype=dtype)
    return work_of(kind, log_probabilities.shape, tensor("gradient", samples, dtype=dtype), *operands, dtype=dtype)


def beams(steps: int = 50, samples: int = 4, classes: int = 30, beams: int = 16) -> Work:
    operands = tensor("p", steps, samples, classes, dtype=FLOAT32), tensor("lengths", samples, dtype=INT32)
    return work_of("ctc_beam_search", (samples, 1), *operands, arguments=(0, beams, 1), dtype=FLOAT32)


def rounds(count: int = 10, elements: int = 1000) -> Work:
    return estimated(GC200, Rounds(count, elements, ("add", "add")), Element.FLOAT, elements)


@pytest.mark.parametrize(
    ("work", "more"),
    [
        (farthest, {"points": 1, "features": 1, "picks": 1}),
        (nearest, {"rows": 2, "others": 2}),
        # States are doubled: 16 of them can be shared by 16 tiles, 15 by 8 only, so one more may take less.
        (ctc, {"steps": 1, "samples": 1, "labels": 2}),
        (beams, {"steps": 1, "samples": 2, "classes": 2, "beams": 2}),
        (rounds, {"count": 1, "elements": 1000}),
    ],
)
@given(data=st.data())
def test_more_of_anything_never_takes_fewer_cycles(work: Callable[..., Work], more: dict[str, int], data) -> None:
    """One more, or twice as many (2)."""
    sizes = {name: data.draw(st.integers(2, 60), label=name) for name in more}
    least = cycles(work(**sizes))
    for name, step in more.items():
        larger = {**sizes, name: 2 * sizes[name] if step == 2 else sizes[name] + step}
        assert cycles(work(**larger)) >= least


def test_a_row_and_a_column_are_received_faster_than_everything() -> None:
    def work(received: str) -> Work:
        return estimated(GC200, Rounds(1, 10**6, ("add",), received), Element.FLOAT, 10**6)

    # 680 elements on a tile, or a row and a column of a square of them: 2 x 27.
    saved = work("all").cycles.exchange - work("row and column").cycles.exchange
    assert saved == (680 - 2 * 27) * 4 / GC200.chip.exchange_bytes_per_cycle
    # Every round and every pick takes the same, and they follow one another.
    assert farthest(picks=64).cycles == farthest(picks=1).cycles.times(64)
    assert rounds(count=64).cycles == rounds(count=1).cycles.times(64)
    # A million distances of three features on one tile would be 3 x 2^20 / 12 vectors of six cycles and more.
    work = nearest(1, 1 << 20, 3)
    assert work.cycles.phases == 2
    assert work.cycles.compute < (3 << 20) / 12 * 6 / 100


def test_temporary_memory_by_hand() -> None:
    """The best of 4 x 16 x 30 candidates, their parents' log probabilities, and two integers for each beam and step."""
    best = GC200.spread(4 * 16 * 30, Element.FLOAT) * (4 + 4)
    beams_of_steps = GC200.spread(50 * 4 * 16, Element.INT)
    assert beams().temporary_bytes == best + GC200.spread(4 * 16 * 30, Element.FLOAT) * 4 + 2 * beams_of_steps * 4
    # All log probabilities of the states of a sample on one tile, and two steps of the recursion.
    assert ctc().temporary_bytes == (12 + 2) * 11 * 4


class TestCtc:
    def test_a_step_is_two_log_adds_and_a_sum_of_every_state(self) -> None:
        """One sample to a tile: 11 states on six workers are one pair each, 23 + 23 + 3 cycles a pair with one load and
        store for all three (less 2 x 2) and two operands more; 11 + 6 x 29 are the calls."""
        step = 11 + 6 * (29 + 23 + 23 + 3 - 4 + 2)
        # Another step also looks up 11 more log probabilities, at 21 cycles each for a worker.
        lookup = 6 * 21 * (ceil(13 * 11 / 6) - ceil(12 * 11 / 6))
        assert ctc(steps=13).cycles.compute - ctc().cycles.compute == pytest.approx(step + lookup)

    def test_a_small_sample_stays_on_one_tile_and_a_long_one_is_shared_by_tiles_that_meet_in_every_step(self) -> None:
        assert ctc().cycles.phases == 1
        assert ctc(samples=1472).cycles == ctc().cycles
        long, alone = ctc(labels=2000), ctc(labels=2000, samples=GC200.chip.tiles)
        assert long.cycles.phases == 1 + 12
        assert cycles(long) < cycles(alone)


# --- ops of captured programs


def recognised(values: Tensor, targets: Tensor) -> Tensor:
    lengths = torch.full((2,), values.shape[0]), torch.full((2,), 5)
    return F.ctc_loss(values.log_softmax(-1), targets, *lengths, reduction="none")


@pytest.mark.parametrize("targets", [torch.ones(2, 5), torch.ones(10)], ids=["rows", "all in one row"])
def test_the_loss_of_a_program_has_the_sizes_of_its_tensors(targets: Tensor) -> None:
    inputs = torch.zeros(12, 2, 7), targets.int()
    assert cost_of("ctc_loss", recognised, *inputs).work.cycles == ctc().cycles
    backward = cost_of("ctc_loss", recognised, *inputs, phase=Phase.BACKWARD)
    assert backward.work.cycles == ctc("ctc_loss_backward").cycles


def test_points_of_a_program_have_the_sizes_of_its_tensors() -> None:
    def picked(*counts: int) -> Work:
        function = lambda x: farthest_points(x, [0, 8, 20], list(counts), None) * x.sum()  # noqa: E731
        return cost_of("farthest", function, torch.rand(20, 3)).work

    assert picked(2, 5).cycles == farthest(20, 3, 2, 5).cycles
    function = lambda x, y: nearest_points(x, y, None, None) * x.sum()  # noqa: E731
    assert cost_of("nearest", function, torch.rand(20, 3), torch.rand(15, 3)).work.cycles == nearest(20, 15, 3).cycles


def decoded(x: Tensor, lengths: Tensor) -> Tensor:
    return beam_search(x, lengths, 0, 16, 1)[0]


@pytest.mark.parametrize(
    ("function", "inputs", "most"),
    [
        # 2,000 labels are shared by tiles, which exchange in every step; nothing else of this model exchanges more.
        (recognised, lambda n: (torch.zeros(n, 2, 7), torch.ones(2, 2000).int()), 11),
        (decoded, lambda n: (torch.rand(n, 4, 30), torch.ones(4).int()), 1),
    ],
)
def test_the_code_of_a_step_exists_once_however_many_there_are(function, inputs, most: int) -> None:
    few, many = (distinct_phases(scaled(function), *inputs(n)) for n in (12, 120))
    assert many - few <= most
    assert cost_of("beam", decoded, torch.rand(50, 4, 30), torch.ones(4).int()).work.cycles == beams().cycles


@pytest.mark.parametrize(
    ("name", "function", "rounds"),
    [
        ("_linalg_det.default", torch.linalg.det, {8: 8, 32: 32}),  # one for each column
        ("linalg_inv_ex.default", torch.linalg.inv, {8: 24, 32: 96}),  # and two to solve
        ("_linalg_eigh.default", torch.linalg.eigvalsh, {8: 70, 32: 310}),  # ten sweeps of n - 1
        ("_fft_r2c.default", lambda x: torch.fft.rfft(x).real, {8: 3, 32: 5}),  # log2(n)
        ("searchsorted.Tensor", lambda x: torch.searchsorted(x.detach(), x.detach()) * x, {8: 4, 32: 6}),
    ],
    ids=["det", "inverse", "eigenvalues", "fft", "search"],
)
def test_longer_rows_take_as_many_rounds_as_the_algorithm(name: str, function, rounds: dict[int, int]) -> None:
    costs = {n: cost_of(name, function, torch.eye(n)) for n in rounds}
    assert {n: cost.work.repeats for n, cost in costs.items()} == rounds
    assert {cost.family for cost in costs.values()} == {"estimated"}


# --- recurrent layers

STEPS, ROWS, INPUTS, STATES = 7, 3, 6, 8
X = torch.zeros(STEPS, ROWS, INPUTS)
GATES = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}
CELLS = {nn.LSTM: nn.LSTMCell, nn.GRU: nn.GRUCell, nn.RNN: nn.RNNCell}


def output_of(network: nn.RNNBase, x: Tensor) -> Tensor:
    return network(x)[0]


def loop(cell: nn.RNNCellBase, x: Tensor) -> Tensor:
    """Return the same, computed by a loop over a cell."""
    state, outputs = None, []
    for step in x.unbind(0):
        state = cell(step, state)
        outputs.append(state[0] if isinstance(state, tuple) else state)
    return torch.stack(outputs)


@pytest.mark.parametrize(
    ("kind", "directions", "settings"),
    [*((kind, directions, {}) for kind in GATES for directions in (1, 2)), (nn.LSTM, 1, {"proj_size": 5})],
)
def test_arithmetic_is_that_of_the_gates_and_of_the_cells_in_a_loop(kind, directions, settings) -> None:
    """G x (I + H) multiply-adds for a sequence and step, or G x (I + P) + H x P with a projection to P outputs; a first
    state of zeros needs no gradient. A loop over cells also multiplies the first state of zeros for the weight's
    gradient, and so does the layer.
    """
    projection = settings.get("proj_size", 0)
    costs = costed(scaled(output_of, kind(INPUTS, STATES, bidirectional=directions == 2, **settings)), X)
    outputs = projection or STATES
    gates = GATES[kind] * STATES
    forward = directions * STEPS * ROWS * 2 * (gates * (INPUTS + outputs) + STATES * projection)
    first_step = directions * ROWS * 2 * gates * outputs
    assert sum(op.work.flops for op in costs.of(phase=Phase.FORWARD)) == forward
    assert sum(op.work.flops for op in costs.of(phase=Phase.BACKWARD)) == 2 * forward - first_step
    if directions == 1 and not projection:
        assert costs.flops == costed(scaled(loop, CELLS[kind](INPUTS, STATES)), X).flops


def test_the_loops_repeat_once_for_each_step_and_what_is_outside_does_not() -> None:
    ops = costed(scaled(output_of, nn.LSTM(INPUTS, STATES)), X).ops
    repeats = {(op.target, op.part): op.work.repeats for op in ops if "lstm" in op.target}
    assert repeats["ipu_model.lstm.default", "steps"] == STEPS
    assert repeats["ipu_model.lstm_backward.default", "steps"] == STEPS
    assert {repeats[key] for key in repeats if key[1] != "steps"} == {1}
    # The gradient of an input without one costs nothing.
    parts = {op.part for op in costed(calling(output_of, nn.LSTM(INPUTS, STATES)), X).ops}
    assert "weight gradient" in parts
    assert "data gradient" not in parts
