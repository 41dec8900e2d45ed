"""Costs of captured programs: what costs nothing, layouts, parts, settings and hints, and ops made of rounds."""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import ceil

import pytest
import torch
import torch.nn.functional as F
from hand_written import tensor, work_of
from hypothesis import given
from hypothesis import strategies as st
from net_support import GC200, SETTINGS, Net, Trained, calling, costed, cycles, stepped
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ipu_model.capture import tracing
from ipu_model.capture.describe import step_of
from ipu_model.capture.device_ops.ctc import beam_search
from ipu_model.capture.device_ops.points import farthest_points, nearest_points
from ipu_model.errors import Error
from ipu_model.predict.costs import Costs, OpCost, costs_of, total_of
from ipu_model.predict.device import CostSettings, Device, Element, Work
from ipu_model.predict.hardware import chip
from ipu_model.predict.memory import steps_of
from ipu_model.predict.ops import indexing
from ipu_model.predict.ops.reductions import estimated
from ipu_model.step import FLOAT32, INT32, Phase, Serialisation
from published.convolutional import day03

HALF = torch.float16
SQUARE = torch.zeros(64, 64)


def inference(function: Callable[..., Tensor], *inputs: Tensor) -> Costs:
    module = function if isinstance(function, nn.Module) else calling(function)
    return costs_of(stepped(module, *inputs, training=False))


def targets(costs: Costs) -> list[str]:
    return [op.target.removeprefix("aten.") for op in costs.ops]


def filled(x: Tensor) -> Tensor:
    """Return what is computed of a buffer that is filled from data, and therefore not known."""
    scratch = torch.zeros(64, 64)
    scratch[2:4] = x[2:4]
    return scratch.exp()


class TestWhatCostsNothing:
    @pytest.mark.parametrize(
        ("function", "x", "ops"),
        [
            (lambda x: x.view(4, 8).t()[1:5].unsqueeze(0).expand(3, 4, 4).permute(2, 0, 1), torch.zeros(32), []),
            (lambda x: x.long(), torch.zeros(8, dtype=torch.int32), []),  # one type on the device
            (lambda x: x + torch.ones(64, 64).tril().log(), SQUARE, ["add.Tensor"]),  # known when compiling
        ],
    )
    def test_only_these_ops_cost_anything(self, function: Callable[..., Tensor], x: Tensor, ops: list[str]) -> None:
        assert targets(inference(function, x)) == ops
        assert "exp.default" in targets(inference(filled, SQUARE))

    def test_a_dropouts_mask_is_drawn_and_scaled_in_one_pass(self) -> None:
        """PopLibs has two passes for a dropout: random numbers and a multiplication. Other divisions cost a pass."""
        costs = costed(nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.1)), SQUARE)
        dropout = [op.target for op in costs.of(phase=Phase.FORWARD) if op.scope == "module.1"]
        assert dropout == ["aten.bernoulli_.float", "aten.mul.Tensor"]
        assert targets(inference(lambda x: x.exp().div_(3.0), SQUARE)) == ["exp.default", "div_.Tensor"]


class TestLayouts:
    def test_ops_on_one_layout_do_not_exchange_but_a_residual_comes_from_elsewhere(self) -> None:
        assert total_of(inference(lambda x: x.exp() * x, SQUARE).ops).phases == 0
        residual = calling(lambda conv, x: conv(x) + x, nn.Conv2d(8, 8, 3, padding=1))
        (added,) = [op for op in inference(residual, torch.zeros(4, 8, 16, 16)).ops if op.target == "aten.add.Tensor"]
        assert added.work.cycles.phases == 1

    def test_what_follows_a_contraction_works_on_its_busiest_tile(self) -> None:
        costs = inference(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), torch.zeros(1, 3, 6, 6))
        conv, relu = (op for op in costs.ops if op.part == "")
        assert costs.layouts[relu.node] == costs.layouts[conv.node]
        assert relu.work.outputs_on_busiest_tile >= conv.work.outputs_on_busiest_tile

    def test_a_product_without_a_weight_in_the_backward_pass_is_no_weight_gradient(self) -> None:
        """d(y y^T) = g^T y and g y, with a gradient g that is the same everywhere; the weight gradient comes last and
        is the only one that turns both operands."""
        product = calling(lambda layer, x: (y := layer(x)) @ y.t(), nn.Linear(64, 64, bias=False))
        plans = [op.work.plan for op in costed(product, SQUARE).of(phase=Phase.BACKWARD) if "mm" in op.target]
        assert [plan.startswith("product") for plan in plans] == [False, False, True]


def test_gradients_of_a_convolution_are_separate() -> None:
    costs = costed(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)), torch.zeros(2, 3, 12, 12))
    parts = [op.part for op in costs.of(phase=Phase.BACKWARD) if "convolution" in op.target]
    assert parts == ["data gradient", "weight gradient", "bias gradient", "weight gradient", "bias gradient"]


def test_an_op_without_formula_is_costed_and_listed() -> None:
    (listed,) = (op for op in inference(lambda x: torch.cdist(x, x), SQUARE).ops if op.is_fallback)
    received = SETTINGS.device.spread(64 * 64, Element.FLOAT) * Element.FLOAT.bytes
    assert "dist" in listed.target
    assert listed.work.cycles.compute > 0
    assert listed.work.cycles.exchange >= received / SETTINGS.device.chip.exchange_bytes_per_cycle


# --- FLOPs, against torch's counter


def attended(qkv: nn.Module, x: Tensor) -> Tensor:
    q, k, v = (part.unflatten(2, (4, 8)).transpose(1, 2) for part in qkv(x).chunk(3, 2))
    return (q @ k.transpose(2, 3) / 8**0.5).softmax(3) @ v


def flops(module: nn.Module, *inputs: Tensor) -> tuple[int, int]:
    with FlopCounterMode(display=False) as counter:
        module(*inputs).float().sum().backward()
    return sum(op.work.flops for op in costed(module, *inputs).ops), counter.get_total_flops()


class TestFlops:
    @pytest.mark.parametrize(
        ("module", "shape"),
        [
            (nn.Linear(20, 30), (7, 20)),
            (nn.Linear(20, 30, bias=False), (2, 7, 20)),
            (nn.Conv1d(4, 6, 5), (2, 4, 32)),
            (nn.Conv2d(4, 6, 3, stride=2, padding=1), (2, 4, 15, 15)),
            (nn.Conv2d(4, 6, 3, dilation=2), (2, 4, 15, 15)),
            (nn.Conv3d(2, 3, 3, padding=1), (1, 2, 6, 6, 6)),
            (nn.ConvTranspose2d(6, 4, 2, stride=2), (2, 6, 8, 8)),
            (nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)), (2, 3, 12, 12)),
            (calling(attended, nn.Linear(32, 96)), (2, 10, 32)),
        ],
    )
    def test_as_counted_by_torch(self, module: nn.Module, shape: tuple[int, ...]) -> None:
        ours, theirs = flops(module, torch.zeros(shape))
        assert ours == theirs

    def test_grouped_weight_gradients_are_counted_once(self) -> None:
        """torch's counter takes the weight gradient of every group over the channels of all groups."""
        forward = 2 * (2 * 10 * 10) * 8 * 2 * 9
        ours, theirs = flops(nn.Conv2d(8, 8, 3, groups=4, padding=1), torch.zeros(2, 8, 10, 10))
        assert (ours, theirs) == (2 * forward, forward + 4 * forward)


# --- settings and hints


class TestSettings:
    LAYERS = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1)).half()
    INPUT = torch.zeros(8, 64, 16, 16, dtype=HALF)

    @pytest.mark.parametrize(
        ("chosen", "compare"),
        [
            (CostSettings(half_partials=True), operator.lt),
            (CostSettings(half_partials=True, half_partials_of_convolutions=False), operator.eq),
            (CostSettings(Device(chip=chip("GC2"))), operator.gt),
            (CostSettings(stable_norm=True), operator.eq),
        ],
    )
    def test_cycles_of_convolutions(self, chosen: CostSettings, compare: Callable[[float, float], bool]) -> None:
        plain = cycles(costed(self.LAYERS, self.INPUT))
        assert compare(cycles(costed(self.LAYERS, self.INPUT, settings=chosen), chosen), plain)

    def test_a_proportion_is_for_one_ipu(self) -> None:
        step = step_of(day03())
        some, all_ = costs_of(step, CostSettings(available_memory_proportion={1: 0.05})), costs_of(step)
        assert total_of(some.of(ipu=0)) == total_of(all_.of(ipu=0))
        assert cycles(some, ipu=1) > cycles(all_, ipu=1)
        assert temporary(some, ipu=1) <= 0.05 * SETTINGS.device.chip.tile_bytes


def temporary(costs: Costs, **where: int) -> float:
    return max(op.work.temporary_bytes for op in costs.of(**where) if op.work.family == "contraction")


def hinted(**hints: object) -> Costs:
    """Return the costs of a large product whose result carries hints, as poptorch's annotations leave them."""

    def product(layer: nn.Linear, x: Tensor) -> Tensor:
        result = x @ layer.weight
        tracing.current().hint(result, **hints)
        return result

    return costed(calling(product, nn.Linear(2048, 1024, bias=False)), torch.zeros(512, 1024))


def serialised(mode: str, factor: int) -> Costs:
    return hinted(serialisation=Serialisation(mode, factor))


class TestHints:
    def plans(self, costs: Costs) -> list[str]:
        return [op.work.plan for op in costs.ops if op.work.family == "contraction"]

    @pytest.mark.parametrize("mode", ["input_channels", "reducing_dim", "output_channels"])
    def test_serialised_products_run_in_slices_forward_and_backward(self, mode: str) -> None:
        plans = self.plans(serialised(mode, 4))
        assert len(plans) == 2  # the input has no gradient
        assert all("4 serial slices" in plan for plan in plans)

    def test_slices_save_memory_and_cost_time(self) -> None:
        whole, sliced = hinted(), serialised("output_channels", 8)
        assert cycles(sliced) > cycles(whole)
        assert sum(op.work.flops for op in sliced.ops) == sum(op.work.flops for op in whole.ops)
        assert temporary(sliced) < temporary(whole)
        for mode, factor in (("none", 4), ("output_channels", 0)):
            assert self.plans(serialised(mode, factor)) == self.plans(whole)

    def test_a_proportion_of_one_op_or_one_ipu_must_be_between_0_and_1(self) -> None:
        assert temporary(hinted(available_memory_proportion=0.05)) <= 0.05 * SETTINGS.device.chip.tile_bytes
        with pytest.raises(Error, match=r"must be between 0 and 1, not 2\.0"):
            hinted(available_memory_proportion=2.0)
        for proportion in (-0.1, 1.5, float("nan")):
            with pytest.raises(Error, match="proportion of IPU0 must be between 0 and 1"):
                CostSettings(available_memory_proportion={0: proportion})


# --- rows by index

WORDS, WIDTH, PICKED = 300, 24, 1000
TABLE, INDEX, VALUES = torch.zeros(WORDS, WIDTH), torch.zeros(PICKED, dtype=torch.int64), torch.zeros(PICKED, WIDTH)


def expanded(index: Tensor) -> Tensor:
    return index[:, None].expand(PICKED, WIDTH)


def indexed(table: Tensor, index: Tensor, values: Tensor | float) -> Tensor:
    table = table.clone()
    table[index] = values
    return table


class TestRowsByIndex:
    @pytest.mark.parametrize(
        "picked",
        [
            lambda x, i: F.embedding(i, x),
            lambda x, i: x[i],
            lambda x, i: x.t()[:, i],
            lambda x, i: x.gather(0, expanded(i)),
            lambda x, i: x.t().gather(1, expanded(i).t()),
            lambda x, i: x.gather(0, expanded(i.int())),
            lambda x, i: torch.take_along_dim(x, i[:, None], 0),
        ],
    )
    def test_all_ways_to_pick_rows_cost_the_same(self, picked: Callable[..., Tensor]) -> None:
        (expected,) = inference(lambda x, i: x.index_select(0, i), TABLE, INDEX).ops
        assert expected.work.cycles == indexing.gather(GC200, WORDS, WIDTH, PICKED, Element.FLOAT).cycles
        (op,) = (op for op in inference(picked, TABLE, INDEX).ops if op.work.family == "embedding")
        assert op.work.cycles == expected.work.cycles

    @pytest.mark.parametrize(
        "changed",
        [
            lambda x, i, v: x.scatter_add(0, expanded(i), v),
            lambda x, i, v: x.scatter_add(0, expanded(i.int()), v),
            lambda x, i, v: x.scatter(0, expanded(i), v),
            lambda x, i, v: x.scatter_reduce(0, expanded(i), v, "amax"),
            lambda x, i, v: x.index_put((i,), v, accumulate=True),
            lambda x, i, v: x.index_copy(0, i, v),
            lambda x, i, v: x.index_reduce(0, i, v, "amax"),
            lambda x, i, v: x.index_fill(0, i, 1.0) + v[0],
            lambda x, i, v: indexed(x, i, v),
            lambda x, i, v: indexed(x, i, 1.0) + v[0],
        ],
    )
    def test_all_ways_to_write_rows_cost_the_same(self, changed: Callable[..., Tensor]) -> None:
        inputs = TABLE, INDEX, VALUES
        (expected,) = inference(lambda x, i, v: x.index_add(0, i, v), *inputs).ops
        (op,) = (op for op in inference(changed, *inputs).ops if op.work.family == "embedding")
        assert op.work.cycles == expected.work.cycles

    def test_an_index_for_each_element_is_a_table_of_single_elements(self) -> None:
        index = expanded(INDEX).contiguous()
        (op,) = inference(lambda x, i: x.gather(0, i), TABLE, index).ops
        assert op.work.cycles == indexing.gather(GC200, WORDS * WIDTH, 1, PICKED * WIDTH, Element.FLOAT).cycles

    def test_the_gradient_of_an_embedding_is_an_update_of_zeros(self) -> None:
        costs = costed(calling(lambda table, i: table(i), nn.Embedding(WORDS, WIDTH)), INDEX)
        (op,) = (op for op in costs.of(phase=Phase.BACKWARD) if op.work.family == "embedding")
        assert op.work.cycles == indexing.scatter(GC200, WORDS, WIDTH, PICKED, Element.FLOAT).cycles

    def test_a_memory_proportion_of_the_op_or_its_ipu_bounds_its_plan(self) -> None:
        def picked(x: Tensor, index: Tensor) -> Tensor:
            result = x.index_select(0, index)
            tracing.current().hint(result, available_memory_proportion=0.1)
            return result

        table, index = torch.zeros(4096, 256), torch.zeros(16_384, dtype=torch.int64)
        (op,) = inference(picked, table, index).ops
        step = stepped(calling(lambda x, i: x.index_select(0, i)), table, index, training=False)
        (other,) = costs_of(step, CostSettings(available_memory_proportion={0: 0.1})).ops
        (free,) = costs_of(step).ops
        assert op.work == other.work
        assert op.work.temporary_bytes < 0.1 * GC200.chip.tile_bytes < free.work.temporary_bytes


# --- ops made of rounds that depend on one another: sampling, CTC, beam search, textbook algorithms, recurrent layers


def scaled(function: Callable[..., Tensor], *layers: nn.Module) -> nn.Module:
    """Return a function of layers and inputs, the first of which has a gradient: it is scaled by a weight."""

    def forward(net: Net, x: Tensor, *others: Tensor) -> Tensor:
        return function(*net.layers, x * net.scale, *others)

    return Net(forward, layers=nn.ModuleList(layers), scale=nn.Parameter(torch.ones(1)))


def cost_of(name: str, function: Callable[..., Tensor], *inputs: Tensor, phase: Phase = Phase.FORWARD) -> OpCost:
    costs = costed(scaled(function), *inputs)
    assert not any(op.is_fallback for op in costs.ops)
    (op,) = [op for op in costs.of(phase=phase) if name in op.target]
    return op


def total_cycles(work: Work) -> float:
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
    return estimated(GC200, count, elements, ("add", "add"), Element.FLOAT, elements, pairs=False)


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
    least = total_cycles(work(**sizes))
    for name, step in more.items():
        larger = {**sizes, name: 2 * sizes[name] if step == 2 else sizes[name] + step}
        assert total_cycles(work(**larger)) >= least


def test_a_row_and_a_column_are_received_faster_than_everything() -> None:
    def work(pairs: bool) -> Work:
        return estimated(GC200, 1, 10**6, ("add",), Element.FLOAT, 10**6, pairs=pairs)

    # 680 elements on a tile, or a row and a column of a square of them: 2 x 27.
    saved = work(False).cycles.exchange - work(True).cycles.exchange
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
        assert total_cycles(long) < total_cycles(alone)


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
    few, many = (stepped(Trained(scaled(function)), *inputs(n)) for n in (12, 120))
    phases = [steps_of(step, costs_of(step, SETTINGS), 0, calls=1).phases for step in (few, many)]
    assert phases[1] - phases[0] <= most
    assert cost_of("beam", decoded, torch.rand(50, 4, 30), torch.ones(4).int()).work.cycles == beams().cycles


def test_a_search_takes_as_many_rounds_as_bisection() -> None:
    def found(n: int) -> OpCost:
        return cost_of("bucketize", lambda x, row: torch.bucketize(x.detach(), row) * x, torch.ones(4), torch.arange(n))

    assert {n: found(n).work.repeats for n in (7, 31)} == {7: 3, 31: 5}


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
        as_loop = costed(scaled(loop, CELLS[kind](INPUTS, STATES)), X)
        assert sum(op.work.flops for op in costs.ops) == sum(op.work.flops for op in as_loop.ops)


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
