"""The model runs without PyTorch: steps written by hand, a rule registered for a new op, empty tensors, a pipeline."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hand_written import linear, op, tensor, work_of

from ipu_model.batching import Batching
from ipu_model.errors import Error
from ipu_model.optimiser import Hyper, OptimiserSpec
from ipu_model.predict import profile_program, vertices
from ipu_model.predict.calibration import calibrated
from ipu_model.predict.costs import costs_of
from ipu_model.predict.device import CostSettings, Cycles, Device, Element, Work
from ipu_model.predict.ops import register
from ipu_model.predict.ops.rule import OpView, OpWork, Rule
from ipu_model.predict.order import order_of
from ipu_model.predict.planner import contraction, matrix_product
from ipu_model.predict.program import Program
from ipu_model.step import FLOAT32, Op, Phase, Placement, Ref, Source, Variable, step_of_ops


class TestByHand:
    def test_a_step_has_costs_and_a_profile(self) -> None:
        costs = costs_of(linear())
        assert [cost.node for cost in costs.ops if cost.is_fallback] == ["g_out"], "a captured step expands by a view"
        flops = {cost.node: cost.work.flops for cost in costs.ops if cost.work.flops}
        assert flops["out"] == flops["g_w"] == 2 * 64 * 128 * 32
        optimiser = OptimiserSpec("SGD1", Hyper(lr=0.1))
        profile = profile_program(Program(step=linear(), training=True, optimiser=optimiser))
        nodes = ["out", "loss", "g_out", "g_x", "g_w", "g_b", "g_r"]
        assert list(dict.fromkeys(cost.node for cost in costs.ops)) == nodes
        assert list(dict.fromkeys(op.node for op in profile.ops)) == nodes
        assert profile.cycles[0].total > sum(op.cycles for op in profile.ops)
        assert profile.memory.fits

    def test_a_rectifier_stays_where_the_product_left_its_result(self) -> None:
        entering = [(tensor("x", 64, 128), Source.INPUT), (tensor("w", 128, 32, of_weight=True), Source.VARIABLE)]
        costs = costs_of(step_of_ops([op("mm", (64, 32), "x", "w"), op("relu", (64, 32), "mm")], entering))
        assert costs.ops[0].work == contraction(matrix_product(64, 128, 32, 2), Device())
        assert costs.layouts["relu"] == costs.layouts["mm"]

    def test_a_median_without_a_dimension_is_that_of_all_elements(self) -> None:
        assert work_of("median", (), (2000, 8)).cycles == work_of("median", (), (16000,), arguments=(0,)).cycles

    @pytest.mark.parametrize(("kinds", "fixed", "vector", "operands"), [
        # Looking for infinities is one comparison of nine cycles.
        ("isinf isposinf isneginf", 0, 9, [(600,)]),
        # One draw takes 5 cycles without an operand; a normal number takes two draws and a sum, which are 5 + 5 + 3
        # cycles less 2 for each of 2 further ops. Whatever its size, an op that draws sets the seeds of all tiles.
        ("rand randint", calibrated().cost.random_fixed_cycles, 5, []),
        ("randn normal", calibrated().cost.random_fixed_cycles, 9, []),
    ])  # fmt: skip
    def test_cycles(self, kinds: str, fixed: float, vector: int, operands: list[tuple[int, ...]]) -> None:
        # At least 128 bytes on a tile, so 64 elements: 11 for each worker, three vectors.
        for kind in kinds.split():
            assert work_of(kind, (600,), *operands).cycles == Cycles(compute=fixed + 20 + 6 * (17 + 3 * vector))


class TestRegistration:
    def test_an_op_has_a_cost_as_soon_as_its_rule_is_registered(self) -> None:
        step = step_of_ops([op("halved_twice", (600,), "x")], [(tensor("x", 600), Source.INPUT)])
        (before,) = costs_of(step).ops
        assert before.is_fallback

        def halved_twice(view: OpView) -> OpWork:
            cycles = vertices.elementwise(view.device, view.needed(0).on_tile, Element.HALF, ("scale",), vertices.UNARY)
            return view.takes(Work("elementwise", Cycles(compute=2 * cycles)))

        register(Rule(("halved_twice",), halved_twice))
        (after,) = costs_of(step).ops
        assert not after.is_fallback
        # At least 128 bytes on a tile, so 64 elements: 11 for each worker, three vectors of two cycles.
        assert after.work.cycles == Cycles(compute=2 * (20 + 6 * (17 + 2 * 3)))

    def test_a_kind_has_one_rule(self) -> None:
        with pytest.raises(Error, match="relu are costed by another rule"):
            register(Rule(("relu",), lambda view: OpWork((), view.own_layouts())))


class TestEmptyTensors:
    def test_an_op_that_makes_no_element_costs_nothing(self) -> None:
        for kind in ("sum", "amax", "argmax", "relu", "exp", "_softmax", "sort", "clone", "unheard_of"):
            found = costs_of(step_of_ops([op(kind, (0,), "x")], [(tensor("x", 3, 0), Source.INPUT)]))
            assert found.ops == (), kind
            assert found.layouts[kind].on_tile == 0

    def test_a_sum_of_nothing_is_still_written_and_a_product_multiplies_nothing(self) -> None:
        work = work_of("sum", (4,), (0, 4))
        assert work.cycles.compute > 0
        assert work.outputs_on_busiest_tile == 4
        assert work_of("mm", (4, 4), (4, 0), (0, 4)).flops == 0

    def test_the_gradient_of_a_norm_of_no_rows_is_costed(self) -> None:
        results = (tensor("dx", 0, 8, producer="n"), tensor("dw", 8, producer="n"), tensor("db", 8, producer="n"))
        arguments = (Ref("dy"), Ref("x"), (8,))
        backward = Op("n", "native_layer_norm_backward", results, arguments, phase=Phase.BACKWARD)
        entering = [(tensor("dy", 0, 8), Source.INPUT), (tensor("x", 0, 8), Source.INPUT)]
        (cost,) = costs_of(step_of_ops([backward], entering)).ops
        assert cost.work.family == "normalisation"


# --- a pipeline of five ops on two IPUs, profiled where PyTorch cannot be imported

# Every tensor has 96 float32 elements for each of GC200's 1,472 tiles, 565,248 bytes. Of each micro-batch, stage 0
# multiplies an input by a weight; stage 1 rectifies, negates (the loss) and makes a gradient, which stage 0 multiplies
# by the input: the gradient of the weight. Four micro-batches make one update.
SIZE = 96 * 1_472 * 4
MICRO_BATCHES, STAGES = 4, 2
# K stages need 2 (K - 1) cycles more than there are micro-batches, to fill the pipeline and to empty it.
CYCLES = MICRO_BATCHES + 2 * (STAGES - 1)
SHAPE = (96, 1_472)
CLOCK = 1.33e9


def on_ipu(name: str, kind: str, ipu: int, phase: Phase, *reads: str) -> Op:
    placement = Placement("", stage=ipu, ipu=ipu)
    return op(kind, SHAPE, *reads, name=name, dtype=FLOAT32, phase=phase, placement=placement)


STEP = step_of_ops(
    [
        on_ipu("product", "mul", 0, Phase.FORWARD, "input", "weight"),
        on_ipu("rectified", "relu", 1, Phase.FORWARD, "product"),
        on_ipu("loss", "neg", 1, Phase.FORWARD, "rectified"),
        on_ipu("back", "mul", 1, Phase.BACKWARD, "rectified", "rectified"),
        on_ipu("gradient", "mul", 0, Phase.BACKWARD, "back", "input"),
    ],
    [
        (tensor("weight", *SHAPE, dtype=FLOAT32), Source.VARIABLE),
        (tensor("input", *SHAPE, dtype=FLOAT32), Source.INPUT),
    ],
    variables=(Variable("weight", ("weight",), "weight", trainable=True),),
    outputs=("loss",),
    gradients={"weight": "gradient"},
    loss="loss",
)
CONSTANTS = calibrated().with_values({"pipeline.copy_link_share": 0.5, "stream.refill_bytes_per_second": 1e9})
SETTINGS = CostSettings(device=Device(calibration=CONSTANTS))
PROGRAM = Program(STEP, True, batching=Batching(accumulation=MICRO_BATCHES), settings=SETTINGS)
PROFILE, ORDER = profile_program(PROGRAM), order_of(PROGRAM)


def test_it_needs_no_torch() -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"  # from now on, importing it raises
        "import test_hand_written_steps as by_hand; print(by_hand.PROFILE.cycles, by_hand.PROFILE.memory)"
    )
    folder = Path(__file__).parent
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{PROFILE.cycles} {PROFILE.memory}\n"


def test_both_ipus_take_the_whole_call_and_run_every_op_for_each_micro_batch() -> None:
    assert PROFILE.samples_per_call == SHAPE[0] * MICRO_BATCHES
    assert {op.executions for op in PROFILE.ops} == {MICRO_BATCHES}
    totals = [ipu.total for ipu in PROFILE.cycles]
    assert totals == pytest.approx([PROFILE.device_seconds_per_call * CLOCK] * 2)


def test_stashes_copies_and_refills() -> None:
    """2 (K - 1 - s) + 1 slots; the last stage goes straight on to its backward pass and needs none."""
    assert ORDER.slots == (3, 0)
    assert (0, "input") in [(held.stage, held.tensor.name) for held in ORDER.held]
    # One tensor in each direction in every cycle, at the same time, at half of the 160 GB/s of an IPU's links.
    copies = [ipu.global_exchange for ipu in PROFILE.cycles]
    assert copies == pytest.approx([CYCLES * SIZE / (0.5 * 160e9) * CLOCK] * 2)
    # Only IPU 0 gets inputs, at 1 GB/s; results come once, from IPU 1, which then waits for as many bytes.
    first, second = (ipu.stream_copy_begin for ipu in PROFILE.cycles)
    waits = second - SIZE / 1e9 * CLOCK  # the start of the run, which both wait for
    assert first == pytest.approx(MICRO_BATCHES * SIZE / 1e9 * CLOCK + waits)


def test_tiles_hold_weight_accumulator_and_stash_and_ops_take_the_cycles_of_poplibs_vertices() -> None:
    """Without an optimiser gradients are accumulated all the same; the second IPU has no variable."""
    first, second = ({category.name: category.total_bytes for category in ipu.categories} for ipu in PROFILE.memory)
    assert first["variables"] == first["gradient accumulators"] == SIZE
    assert first["stashes"] == 3 * SIZE
    assert not {"variables", "gradient accumulators", "stashes"} & set(second)
    # 96 elements of a tile are 8 vectors of two floats for each of six workers, which take turns. A vertex has a fixed
    # part, of its supervisor and of each worker; a vector takes two cycles to load and store, and a third to be added
    # or multiplied. "back" multiplies a tensor by itself: a vertex with one operand.
    assert {op.node: op.on_tile_execute for op in PROFILE.ops} == {
        "product": 11 + 6 * (29 + 8 * 3),
        "rectified": 9 + 6 * (20 + 8 * 2),
        "loss": 20 + 6 * (17 + 8 * 2),
        "back": 20 + 6 * (17 + 8 * 3),
        "gradient": 11 + 6 * (29 + 8 * 3),
    }
