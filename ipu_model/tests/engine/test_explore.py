"""What `ipu_model.explore` makes of programs: other options, stages, checkpoints, advice, scaling over replicas."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from net_support import SETTINGS, Trained, calling, cycles, squares, stepped
from torch import nn, zeros

from ipu_model.batching import Batching, Keep
from ipu_model.capture.describe import step_of
from ipu_model.errors import Error
from ipu_model.explore.advise import advise, other_loaders
from ipu_model.explore.blocks import (
    blocks_of,
    repeated_blocks,
    split_before,
    units_of,
    with_checkpoints,
    work_of_scopes,
)
from ipu_model.explore.options import OPTIONS, Risk, with_byte_inputs, with_options
from ipu_model.explore.placement import Part, Stages, even_cuts
from ipu_model.explore.scaling import scaling, update_time
from ipu_model.optimiser import Hyper, OptimiserSpec
from ipu_model.predict import memory_of_program, profile_program, samples_per_second
from ipu_model.predict.costs import costs_of, total_of
from ipu_model.predict.host import HostWork, Loading
from ipu_model.predict.order import traffic_of
from ipu_model.predict.profile import Verdict
from ipu_model.predict.program import Execution, Program, Recomputation
from ipu_model.predict.work import variables_of
from ipu_model.step import FLOAT16, FLOAT32, UINT8
from published.building import FLOAT
from published.convolutional import day03_program

PROGRAM = replace(day03_program(), optimiser=None)
"""ResNet-101 in half precision, cut before layer3[8]."""
SINGLE = day03_program(dtype=FLOAT, accumulation=3)
SGD = OptimiserSpec("SGD2", Hyper(lr=0.1, momentum=0.9))
HALVED = replace(SGD, accum_dtype=FLOAT16, velocity_dtype=FLOAT16)


def shares(program: Program) -> tuple[float | None, ...]:
    return program.settings.proportion(0), program.settings.proportion(1)


SET: list[tuple[dict[str, Any], Callable[[Program], Any], Any]] = [
    ({}, lambda p: p, PROGRAM),
    ({"gradient_accumulation": 16, "device_iterations": 4, "replicas": 2}, lambda p: p.batching, Batching(4, 16, 2)),
    ({"processes": 2}, lambda p: p.processes, 2),
    ({"execution": "interleaved"}, lambda p: p.execution, Execution.INTERLEAVED),
    # PopTorch sets autoRecomputation to Pipeline for pipelines of several IPUs; what is chosen besides stays.
    ({"execution": "sharded"}, lambda p: (p.execution, p.recomputation), (Execution.SHARDED, Recomputation.NONE)),
    ({"execution": "sharded", "recomputation": "standard"}, lambda p: p.recomputation, Recomputation.STANDARD),
    ({"recomputation": "none", "execution": "sharded"}, lambda p: p.recomputation, Recomputation.NONE),
    ({"recomputation": "all"}, lambda p: p.recomputation, Recomputation.ALL),
    ({"available_memory_proportion": 0.2}, shares, (0.2, 0.2)),
    ({"available_memory_proportion": {1: 0.3}}, shares, (0.6, 0.3)),
    ({"available_memory_proportion": {"IPU1": 0.3}}, shares, (0.6, 0.3)),
    ({"split": "model.layer3.6"}, lambda p: list(blocks_of(p)), ["model.layer3.6"]),
    ({"half_partials": True}, lambda p: p.settings.half_partials, True),
    ({"optimizer": SGD}, lambda p: p.optimiser, SGD),
    ({"optimizer": SGD, "half_optimiser_state": True}, lambda p: p.optimiser, HALVED),
    ({"optimizer": HALVED, "half_optimiser_state": False}, lambda p: p.optimiser, SGD),
    ({"optimiser_off_chip": True}, lambda p: p.locations.optimiser.on_chip, False),
    ({"optimiser_sharded": True}, lambda p: p.locations.optimiser.sharded, True),
    ({"eight_bit_inputs": True}, lambda p: p.step.inputs[0].dtype, UINT8),
    ({"prefetch_depth": 3}, lambda p: p.prefetch_depth, 3),
    ({"synthetic_data": True}, lambda p: p.synthetic_data, True),
    ({"output_mode": "all"}, lambda p: p.returns.keep, Keep.ALL),
    ({"machine": "Bow-POD16"}, lambda p: (p.system.name, p.system.ipus), ("Bow-POD16", 16)),
    ({"machine": "Bow"}, lambda p: p.settings.device.chip == p.system.chip, True),
    ({"checkpoints": "model.layer3"}, lambda p: p.step.ops, with_checkpoints(PROGRAM.step, ["model.layer3"]).ops),
]


@pytest.mark.parametrize(("options", "read", "wanted"), SET)
def test_options_set_fields_of_the_program(options, read, wanted) -> None:
    assert read(with_options(PROGRAM, **options)) == wanted


def test_every_option_can_be_set() -> None:
    """And read back; half precision is tested below."""
    assert {name for options, _, _ in SET for name in options} | {"half_precision"} == set(OPTIONS)
    assert all(option.explanation.endswith(".") for option in OPTIONS.values())
    for name, value in (("replicas", 2), ("optimiser_off_chip", True), ("half_optimiser_state", True)):
        assert OPTIONS[name].now(with_options(replace(PROGRAM, optimiser=SGD), **{name: value})) == value
    # Another optimiser brings its state: 4 bytes for an element of velocity, where the program had no optimiser.
    weights = [tensor for tensor in variables_of(with_options(PROGRAM, optimizer=SGD)) if tensor.trainable]
    assert {tensor.state / tensor.elements for tensor in weights} == {4.0}


NO_IPUS = (2, -1, "IPU9", "0.5", True, None)


@pytest.mark.parametrize(
    ("option", "values", "words"),
    [
        ("gradient_acumulation", [2], r"'gradient_acumulation' to change\. Did you mean gradient_accumulation"),
        ("optimizer", ["adam"], "optimizer takes the OptimiserSpec"),
        ("half_optimiser_state", [True], "this program has none"),
        ("split", ["model.layer3.99"], r"does not reach a module 'model.layer3.99'\. Nearest: model\.layer3\.9"),
        ("split", [["model.layer4", "model.layer1"]], "after the ones before it"),
        ("checkpoints", ["model.layer3.99"], r"no output of a module 'model.layer3.99'\. Nearest: model\.layer3\.9"),
        ("device_iterations", [0, -3, 2.5, True, "4"], "device_iterations must be a whole number from 1 on"),
        ("gradient_accumulation", [2], r"gradient_accumulation must be at least 2 x 2 - 1 = 3 .* it is 2"),
        ("execution", ["fast"], "execution must be one of 'pipelined', 'interleaved', 'sharded', not 'fast'"),
        ("available_memory_proportion", [1.5, -1, float("nan"), "0.1", None, [], {0: None}], "between 0 and 1"),
        ("available_memory_proportion", [{ipu: 0.1} for ipu in NO_IPUS], r"has no IPU .* It has IPU0, IPU1"),
        ("machine", ["POD3"], "no machine 'POD3'"),
    ],
)
def test_what_cannot_be_set(option: str, values: list[Any], words: str) -> None:
    for value in values:
        with pytest.raises(Error, match=words):
            with_options(PROGRAM, **{option: value})


def test_inference_has_no_optimiser_and_needs_a_micro_batch_for_each_stage() -> None:
    inference = replace(PROGRAM, training=False)
    with pytest.raises(Error, match="only training has one"):
        with_options(inference, optimizer=SGD)
    with pytest.raises(Error, match=r"device_iterations must be at least 2, .* it is 1"):
        with_options(inference, synthetic_data=True)
    assert with_options(PROGRAM, execution="sharded", gradient_accumulation=1).batching.accumulation == 1


# --- other types


def test_a_derived_step_costs_what_a_capture_in_half_precision_costs() -> None:
    derived = with_options(SINGLE, half_precision=True).step
    assert cycles(costs_of(derived)) == pytest.approx(cycles(costs_of(PROGRAM.step)), rel=0.001)
    variables = [derived.tensors[variable.tensor] for variable in derived.variables]
    assert {variable.dtype for variable in variables if variable.dtype.is_floating} == {FLOAT16}
    assert (derived.inputs[0].dtype, SINGLE.step.inputs[0].dtype) == (FLOAT16, FLOAT32)


def test_only_the_inputs_that_the_host_sends_become_bytes() -> None:
    step = PROGRAM.step
    sent = with_byte_inputs(step)
    assert (sent.inputs[0].dtype, sent.inputs[1]) == (UINT8, step.inputs[1])
    assert (sent.ops, sent.tensors) == (step.ops, step.tensors)
    # Of 64 images of 3 x 64 x 64 pixels, and of 64 labels that travel in 32 bits.
    assert (traffic_of(step).inputs[0], traffic_of(sent).inputs[0]) == (64 * 3 * 64 * 64 * 2, 64 * 3 * 64 * 64)
    assert traffic_of(sent).inputs[1] == 64 * 4


# --- stages


def test_units_follow_the_forward_pass_and_make_up_the_model() -> None:
    units = units_of(PROGRAM.step, PROGRAM.settings)
    names = [unit.name for unit in units]
    # The first block, on the largest images, takes so much that it is divided.
    assert names[:5] == ["model.conv1", "model.bn1", "model.relu", "model.maxpool", "model.layer1.0.conv1"]
    assert names.index("model.layer3.8") == names.index("model.layer3.7") + 1
    whole = SETTINGS.device.total(total_of(costs_of(PROGRAM.step, PROGRAM.settings).ops))
    work = work_of_scopes(PROGRAM.step, PROGRAM.settings)
    assert sum(work.forward.values()) + sum(work.backward.values()) == pytest.approx(whole)
    scopes = [scope for unit in units for scope in unit.scopes]
    assert len(scopes) == len(set(scopes))
    assert set(scopes) >= {*work.forward, *work.backward, *(op.scope for op in PROGRAM.step.ops)}
    # A module that runs twice begins no block.
    shared = nn.Linear(64, 64)
    step = stepped(Trained(nn.Sequential(nn.Linear(64, 64), shared, nn.Linear(64, 64), shared)), torch.zeros(8, 64))
    assert not any(unit.name.endswith(".1") for unit in units_of(step, SETTINGS))


def chain(*widths: int) -> Program:
    """Return the training of linear layers in a row, of which every one has a GELU of its own."""
    layers = (nn.Sequential(nn.Linear(*both), nn.GELU()) for both in itertools.pairwise(widths))
    step = stepped(Trained(nn.Sequential(*layers)), torch.zeros(64, widths[0]))
    return Program(step, True, Batching(accumulation=16), recomputation=Recomputation.PIPELINE)


@pytest.mark.parametrize("seed", range(3))
def test_no_other_cuts_and_shares_are_estimated_to_be_better(seed: int) -> None:
    """Against every way to cut a chain of random layers, one by one, with several limits of memory."""
    stages = Stages(chain(*random.Random(seed).choices((256, 1024, 2048), k=7)), 3, shares=(None, 0.1))
    ends = range(1, len(stages.units))
    plans = [
        stages.estimated(Part(*each) for each in zip((0, *cuts), (*cuts, len(stages.units)), shares))
        for cuts in itertools.combinations(ends, 2)
        for shares in itertools.product((0, 1), repeat=3)
    ]
    least = min(plan.bytes for plan in plans)
    assert stages.leanest().bytes == pytest.approx(least, rel=1e-3)
    assert stages.fastest(0.99 * least) is None
    for most in (1.01 * least, 1.2 * least, math.inf):
        found = stages.fastest(most)
        assert found is not None
        assert found.bytes <= most
        assert found.cycles == pytest.approx(min(plan.cycles for plan in plans if plan.bytes <= most), rel=3e-3)


def test_what_was_modelled_corrects_estimates_of_the_same_ipu() -> None:
    stages = Stages(chain(*[512] * 9), 2)
    plan = stages.fastest(math.inf)
    assert plan is not None
    stages.correct(plan, (7e6, 5e6), (4e5, 3e5))
    assert stages.estimated(plan.parts) == replace(plan, cycles=pytest.approx(7e6), bytes=pytest.approx(4e5))
    # So units go to the IPU that turned out to be faster.
    other = stages.fastest(math.inf)
    assert other is not None
    assert other.parts[0].end < plan.parts[0].end


def test_even_stages_are_those_of_blocks_at_their_modules_or_hold_less_memory() -> None:
    # Before layer3[8], IPU 0 is the slower one (published trace): the even split begins earlier.
    assert even_cuts(PROGRAM, 2)[0] in {("model.layer3.6",), ("model.layer3.7",)}
    assert even_cuts(PROGRAM, 1000) == []
    names = even_cuts(PROGRAM, 4)[0]
    split = split_before(PROGRAM, names)
    assert [stage.ipu for stage in split.step.stages] == [0, 1, 2, 3]
    assert all(name.startswith(begun) for name, begun in zip(names, blocks_of(split), strict=True))
    # A wide layer of 4 x 1,024^2 weights before four narrow ones that take as much time and hold few weights.
    narrow = [nn.Sequential(nn.Linear(1024, 1024), *(nn.GELU() for _ in range(12))) for _ in range(4)]
    module = nn.Sequential(nn.Linear(1024, 4096), nn.Linear(4096, 1024), *narrow)
    program = Program(stepped(Trained(module), torch.zeros(256, 1024)), True, Batching(accumulation=4))
    time, memory = (memory_of_program(split_before(program, names)).max_tile_bytes for names in even_cuts(program, 2))
    assert memory <= time


def test_the_last_stage_can_be_on_the_first_ipu_again() -> None:
    """A pipeline of three stages on two IPUs, whose first IPU works for two of them."""
    program = chain(*[256] * 7)
    blocks = {"module.2.0": 1, "module.5.0": 0}
    split = with_options(program, split=blocks)
    assert OPTIONS["split"].now(split) == blocks
    assert [stage.ipu for stage in split.step.stages] == [0, 1, 0]
    assert split.ipus_per_replica == 2
    with pytest.raises(Error, match="2 x 3 - 1 = 5 for a pipeline of 3 stages"):
        with_options(program, split=blocks, gradient_accumulation=4)
    words = "split over 2 IPUs at 'module.2.0', 'module.5.0' (on IPU 0 again)"
    assert OPTIONS["split"].change(program, blocks) == words
    assert "AutoStage.AutoIncrement" in OPTIONS["split"].line(program, blocks)


def test_a_split_is_what_blocks_at_those_modules_give() -> None:
    module = calling(lambda first, second, x: second(first(x.exp()).sin()).cos(), nn.Linear(8, 8), nn.Linear(8, 8))
    step = split_before(Program(stepped(Trained(module), torch.zeros(4, 8)), True), ["module.layers.1"]).step
    stages = {op.kind: op.stage for op in step.ops if not op.is_backward}
    assert (stages["exp"], stages["sin"], stages["cos"]) == (0, 0, 1)
    # Against the capture of the published program, whose second block begins at layer3[8].
    elsewhere = split_before(PROGRAM, ["model.layer2.0"])
    assert list(blocks_of(elsewhere)) == ["model.layer2.0"]
    there = split_before(elsewhere, ["model.layer3.8"])
    assert profile_program(there) == profile_program(PROGRAM)
    three = split_before(PROGRAM, ["model.layer1", "model.layer3.2", "model.layer4.1"])
    assert list(blocks_of(three)) == ["model.layer1.0", "model.layer3.2", "model.layer4.1"]
    assert len(split_before(PROGRAM, []).step.stages) == 1
    # A program of one IPU recomputes once it has two.
    one = replace(split_before(PROGRAM, []), recomputation=Recomputation.NONE)
    assert split_before(one, ["model.layer3.8"]).recomputation is Recomputation.PIPELINE
    chosen = replace(PROGRAM, recomputation=Recomputation.NONE)
    assert split_before(chosen, ["model.layer4"]).recomputation is Recomputation.NONE


# --- blocks and checkpoints


def test_repeated_blocks_are_rows_of_modules_with_more_than_a_few_ops() -> None:
    """ResNet-101 has 3, 4, 23 and 3 bottlenecks."""
    blocks = repeated_blocks(PROGRAM.step)
    counts = [sum(block.startswith(f"model.layer{layer}.") for block in blocks) for layer in (1, 2, 3, 4)]
    assert (counts, len(blocks)) == ([3, 4, 23, 3], 33)
    assert repeated_blocks(step_of(squares(4, width=16))) == ()


def test_checkpoints_are_the_results_that_leave_their_modules_and_no_others() -> None:
    step = with_checkpoints(PROGRAM.step, ["model.layer3.5"])
    (marked,) = (op for op in step.ops if op.hints.recomputation_checkpoint)
    readers = {reader.scope for result in step.results_of(marked) for reader in step.readers[result.name]}
    assert any(scope.startswith("model.layer3.6") for scope in readers)
    others = ["model.layer3.7"]
    assert with_checkpoints(step, others).ops == with_checkpoints(PROGRAM.step, others).ops
    # Recomputing between checkpoints holds one block's activations, not those of all six.
    blocks = [nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4))) for _ in range(6)]
    kept = Program(stepped(Trained(nn.Sequential(*blocks)), torch.zeros(512, 64)), True)
    names = repeated_blocks(kept.step)
    again = with_options(kept, checkpoints=names, recomputation="all")
    assert len(names) == 6
    assert memory_of_program(again).max_tile_bytes < memory_of_program(kept).max_tile_bytes
    assert samples_per_second(again) < samples_per_second(kept)


# --- advice on the published programs: what their own authors went on to do


def test_single_precision_that_does_not_fit_is_told_to_go_half() -> None:
    """published/day03-resnet101.md: the base configuration is out of memory; 16.16 with half-precision state fits.

    Of half precision with the state left in single precision nothing is published: the model may find that it fits, or
    that it is too close to call. Of the published program, with both in half precision, it may not doubt.
    """
    assert profile_program(SINGLE).verdict is Verdict.DOES_NOT_FIT
    advice = advise(SINGLE)
    first = advice[0]
    assert first.change.startswith("half precision")
    assert first.verdict is not Verdict.DOES_NOT_FIT
    assert first.max_tile_bytes_change < 0
    assert first.risk is Risk.NUMERICS
    assert "numerics change" in first.cost
    assert "->" in first.evidence
    state = "types of accumulators and first moments: float32 -> float16"
    assert any(item.change.startswith(state) for item in advice)
    both = with_options(SINGLE, half_precision=True, half_optimiser_state=True)
    assert profile_program(both).verdict is Verdict.FITS
    # A notebook shows the text.
    assert pytest.importorskip("IPython.lib.pretty").pretty(advice) == str(advice)


def test_what_fits_is_not_advised_to_stop_fitting_and_a_slow_loader_comes_first() -> None:
    """The published 16-bit rows are bound by one loading process."""
    program = day03_program(accumulation=3)
    assert profile_program(program).fits
    advice = advise(program, host=HostWork(0.8e-3, 0.034))
    assert all(item.fits for item in advice)
    assert [item.change.split(":")[0] for item in advice[:2]] == ["loader workers", "asynchronous data loading"]


def test_where_nothing_fits_the_least_memory_comes_first_and_nothing_promises_speed() -> None:
    program = with_options(replace(SINGLE, batching=Batching(accumulation=16)), available_memory_proportion=0.9)
    advice = advise(replace(program, step=split_before(program, ()).step))
    assert not any(item.fits or "samples/s" in item.effect for item in advice)
    changes = [item.max_tile_bytes_change for item in advice]
    assert changes == sorted(changes)
    assert "ipu_model.make_it_fit searches combinations" in advice.note


def test_more_workers_than_cores_are_said_to_share_them() -> None:
    """One process loads now, so that four are proposed."""
    enough = "The host needs that many free cores."
    few = "The effect counts with {}; a host with a free core for each process loads faster."
    for cores, words in ((0, enough), (1, few.format("1 core")), (2, few.format("2 cores")), (4, enough)):
        *_, workers = other_loaders(HostWork(seconds_per_sample=1e-3, cores_per_host=cores))
        assert workers.host.workers == 4
        assert workers.explanation == f"4 processes share the loading. {words}"


# --- scaling over replicas: the parts of an update, and curves beside perfect scaling

LAYERS = Program(
    stepped(Trained(nn.Sequential(nn.Linear(256, 512), nn.Linear(512, 256))), zeros(16, 256)),
    training=True,
    batching=Batching(accumulation=8),
    optimiser=OptimiserSpec("SGD2", Hyper(lr=0.1, momentum=0.9)),
)


def test_two_runs_predict_a_third() -> None:
    update = update_time(LAYERS)
    third = profile_program(replace(LAYERS, batching=Batching(accumulation=40))).call_seconds
    assert replace(update, micro_batches=40).total == pytest.approx(third)
    assert update.total == pytest.approx(profile_program(LAYERS).call_seconds)
    # Replicas lengthen the constant part, and device iterations share it.
    more, longer = Batching(accumulation=8, replicas=4), Batching(accumulation=8, device_iterations=10)
    assert update_time(replace(LAYERS, batching=longer)).constant < update.constant
    assert update_time(replace(LAYERS, batching=more)).constant > update.constant
    with pytest.raises(Error, match="Only training programs"):
        update_time(replace(LAYERS, training=False, optimiser=None))
    with pytest.raises(Error, match="no option 'gradient_acumulation'"):
        scaling(LAYERS, [1], gradient_acumulation=4)


def test_each_point_has_the_smallest_machine_that_is_large_enough() -> None:
    points = scaling(LAYERS, [1, 4, 5, 16, 17, 64, 65])
    machines = [point.profile.machine.name for point in points if point.profile is not None]
    assert machines == ["M2000", "M2000", "POD16", "POD16", "POD64", "POD64", "POD128"]
    assert points[0].efficiency == pytest.approx(1)
    assert (points[0].global_batch, points[0].instances) == (16 * 8, 1)
    assert all(point.efficiency <= 1 + 1e-9 for point in points)


def test_a_constant_global_batch_is_shared_out_and_instances_load_side_by_side() -> None:
    points = scaling(LAYERS, [1, 2, 4, 8], constant_global_batch=True)
    assert [point.accumulation for point in points] == [8, 4, 2, 1]
    assert {point.global_batch for point in points} == {128}
    assert points[-1].efficiency < scaling(LAYERS, [8])[0].efficiency
    # One process that needs 1 ms a sample gives 1,000 samples a second, four of them 4,000.
    host = HostWork(1e-3, loading=Loading.ASYNC)
    (single,) = scaling(LAYERS, [4], host=host)
    (spread,) = scaling(LAYERS, [4], host=host, replicas_per_instance=1)
    assert single.samples_per_second == pytest.approx(1000)
    assert (spread.instances, spread.samples_per_second) == (4, pytest.approx(4000))


@pytest.mark.parametrize(
    ("replicas", "asked", "words"),
    [
        (3, {"constant_global_batch": True}, "divides 8"),
        (0, {"constant_global_batch": True}, "among 0 replicas"),
        (0, {}, "at least one replica"),
        (512, {}, "No system has 512 IPUs"),
        (7, {"replicas_per_instance": 2}, "dealt out evenly over 3 instances"),
    ],
)
def test_points_that_are_impossible_say_why(replicas: int, asked: dict[str, int], words: str) -> None:
    (point,) = scaling(LAYERS, [replicas], **asked)  # type: ignore[arg-type]
    assert point.profile is None
    assert words in point.refused
    assert math.isnan(point.samples_per_second)
