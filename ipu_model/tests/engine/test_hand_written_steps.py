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
from ipu_model.predict.device import Cycles, Device, Element, Work
from ipu_model.predict.ops import register
from ipu_model.predict.ops.rule import OpView, OpWork, Rule
from ipu_model.predict.planner import contraction, matrix_product
from ipu_model.predict.program import Program
from ipu_model.step import FLOAT32, Op, Phase, Ref, Source, step_of_ops


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

    # 96 elements of a tile are 8 vectors of two floats for each of six workers, which take turns. A vertex has a fixed
    # part, of its supervisor and of each worker; a vector takes two cycles to load and store, and a third to be added
    # or multiplied. A product of a tensor and itself is a vertex with one operand.
    @pytest.mark.parametrize(("kind", "names", "cycles"), [
        ("mul", "x y", 11 + 6 * (29 + 8 * 3)), ("mul", "x x", 20 + 6 * (17 + 8 * 3)),
        ("relu", "x", 9 + 6 * (20 + 8 * 2)), ("neg", "x", 20 + 6 * (17 + 8 * 2)),
    ])  # fmt: skip
    def test_ops_take_the_cycles_of_poplibs_vertices(self, kind: str, names: str, cycles: int) -> None:
        entering = [(tensor(name, 96, 1_472, dtype=FLOAT32), Source.INPUT) for name in ("x", "y")]
        (cost,) = costs_of(step_of_ops([op(kind, (96, 1_472), *names.split(), dtype=FLOAT32)], entering)).ops
        assert cost.work.cycles.compute == cycles


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


# --- where PyTorch cannot be imported

PROGRAM = Program(linear(), True, batching=Batching(accumulation=4))


def test_it_needs_no_torch_and_accumulates_gradients_without_an_optimiser() -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"  # from now on, importing it raises
        "from test_hand_written_steps import PROGRAM, profile_program\n"
        "profile = profile_program(PROGRAM); print(profile.cycles, profile.memory)"
    )
    folder = Path(__file__).parent
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    profile = profile_program(PROGRAM)
    assert done.stdout == f"{profile.cycles} {profile.memory}\n"
    held = {category.name: category.total_bytes for category in profile.memory[0].categories}
    assert held["variables"] == held["gradient accumulators"] == (128 * 32 + 32) * 2
