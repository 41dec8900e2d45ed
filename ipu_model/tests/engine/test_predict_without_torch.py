"""A pipeline written by hand, five ops on two IPUs, is profiled where PyTorch cannot be imported.

Numbers follow from the shapes: every tensor has 96 float32 elements for each of GC200's 1,472 tiles, 565,248 bytes. Of
each micro-batch, stage 0 multiplies an input by a weight; stage 1 rectifies, negates (the loss) and makes a gradient,
which stage 0 multiplies by the input: the gradient of the weight. Four micro-batches make one update.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import hand_written
import pytest

from ipu_model.batching import Batching
from ipu_model.predict import profile_program
from ipu_model.predict.calibration import calibrated
from ipu_model.predict.device import CostSettings, Device
from ipu_model.predict.order import order_of
from ipu_model.predict.program import Program
from ipu_model.step import FLOAT32, Op, Phase, Placement, Source, Variable, step_of_ops

SIZE = 96 * 1_472 * 4
MICRO_BATCHES, STAGES = 4, 2
# K stages need 2 (K - 1) cycles more than there are micro-batches, to fill the pipeline and to empty it.
CYCLES = MICRO_BATCHES + 2 * (STAGES - 1)
SHAPE = (96, 1_472)
CLOCK = 1.33e9


def op(name: str, kind: str, ipu: int, phase: Phase, *reads: str) -> Op:
    placement = Placement("", stage=ipu, ipu=ipu)
    return hand_written.op(kind, SHAPE, *reads, name=name, dtype=FLOAT32, phase=phase, placement=placement)


STEP = step_of_ops(
    [
        op("product", "mul", 0, Phase.FORWARD, "input", "weight"),
        op("rectified", "relu", 1, Phase.FORWARD, "product"),
        op("loss", "neg", 1, Phase.FORWARD, "rectified"),
        op("back", "mul", 1, Phase.BACKWARD, "rectified", "rectified"),
        op("gradient", "mul", 0, Phase.BACKWARD, "back", "input"),
    ],
    [
        (hand_written.tensor("weight", *SHAPE, dtype=FLOAT32), Source.VARIABLE),
        (hand_written.tensor("input", *SHAPE, dtype=FLOAT32), Source.INPUT),
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
        "import test_predict_without_torch as by_hand; print(by_hand.PROFILE.cycles, by_hand.PROFILE.memory)"
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
