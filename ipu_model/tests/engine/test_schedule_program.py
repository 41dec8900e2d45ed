"""Programs with captured graphs: bytes by stage, passes and copies, how often ops run, and what options change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from net_support import SETTINGS, Trained, calling, stepped
from torch import Tensor, nn

from ipu_model.batching import Batching, Keep, Returns
from ipu_model.capture.describe import step_of
from ipu_model.capture.graph import TensorSpec
from ipu_model.errors import Error
from ipu_model.optimiser import Hyper, OptimiserSpec
from ipu_model.predict import vertices
from ipu_model.predict.calibration import calibrated
from ipu_model.predict.costs import costs_of, total_of
from ipu_model.predict.device import Element
from ipu_model.predict.hardware import system_named
from ipu_model.predict.links import Ring, ring_of
from ipu_model.predict.order import order_of, traffic_of
from ipu_model.predict.program import Execution, Location, Locations, Program, Recomputation
from ipu_model.predict.time import DeviceTime, time_of
from ipu_model.predict.work import StageWork, shared_seconds, workload_of
from ipu_model.step import FLOAT16, Phase, Step
from published.building import begin_block, captured

HALF, FLOAT = torch.float16, torch.float32
ADAM = OptimiserSpec("ADAM", Hyper(lr=1e-3))
HALVED = replace(ADAM, accum_dtype=FLOAT16)
BATCH, WIDTH = 16, 128
X = torch.zeros(BATCH, WIDTH)
SIZE, WEIGHT, BIAS = BATCH * WIDTH * 4, WIDTH * WIDTH * 4, WIDTH * 4


def in_a_row(*values: Any) -> Tensor:
    *layers, x = values
    for layer in layers:
        x = torch.relu(layer(x))
    return x


def layers_on(ipus: Sequence[int], function: Callable[..., Tensor] = in_a_row, width: int = WIDTH) -> Trained:
    layers = [nn.Linear(width, width) for _ in ipus]
    for layer, before, ipu in zip(layers[1:], ipus, ipus[1:]):
        if ipu != before:
            begin_block(layer, ipu)
    return Trained(calling(function, *layers))


def chain(ipus: int = 2, *, training: bool = True, width: int = WIDTH) -> Step:
    return stepped(layers_on(range(ipus), width=width), torch.zeros(BATCH, width), training=training)


def skipping(*, training: bool = True, offsets: torch.dtype = FLOAT) -> Step:
    """Four linear layers on three IPUs; the last one also reads what the first one made, and a second input."""

    def function(a: nn.Module, b: nn.Module, c: nn.Module, d: nn.Module, values: Tensor, offsets: Tensor) -> Tensor:
        first = torch.relu(a(values))
        return d(torch.relu(c(torch.relu(b(first))))) + first + offsets

    second = torch.zeros(BATCH, WIDTH, dtype=offsets)
    return stepped(layers_on([0, 1, 2, 2], function), X, second, training=training)


def tied(last_ipu: int) -> Step:
    """Three layers without biases in three stages; the last one uses the first one's weight, on its own IPU."""
    model = layers_on([0, 1, last_ipu])
    first, second, last = model.module.layers
    first.bias = second.bias = last.bias = None
    last.weight = first.weight
    return step_of(captured(model, TensorSpec.contiguous((BATCH, WIDTH), FLOAT)))


STEP, ALONE = chain(), chain(1)
(INPUT,) = (tensor.name for tensor in STEP.inputs)


def program(step: Step = STEP, *, accumulation: int = 5, replicas: int = 1, **changes: Any) -> Program:
    batching = Batching(accumulation=accumulation, replicas=replicas)
    plain = Program(step, True, batching=batching, optimiser=ADAM, system=system_named("POD256"))
    return replace(plain, **changes)


def placed(**where: Location) -> Locations:
    return replace(Locations(), **where)


def works(program: Program) -> tuple[StageWork, ...]:
    return workload_of(program).stages


def profiled(program: Program) -> DeviceTime:
    return time_of(program)


class TestTraffic:
    def test_a_tensor_passes_through_the_stages_between_its_own_and_the_farthest_that_reads_it(self) -> None:
        """Inputs enter at the stage that reads them first; results leave where they are made, with the loss."""
        step = skipping()
        traffic = traffic_of(step)
        assert (traffic.inputs, traffic.outputs) == ((SIZE, 0, SIZE), (0, 0, SIZE + 4))
        # Stage 0 sends one tensor to stages 1 and 2; stage 1 sends it on with its own result.
        assert traffic.on == (SIZE, 2 * SIZE, 0)
        # Stage 2 sends two gradients; stage 1 adds the gradient of what skipped it to its own and sends one on.
        assert [op.stage for op in step.ops if op.is_backward and op.target == "aten.add.Tensor"] == [1]
        assert traffic.back == (0, SIZE, 2 * SIZE)
        assert traffic_of(skipping(training=False)).back == (0, 0, 0)
        traffic = traffic_of(stepped(layers_on([0, 1], lambda a, b, x: b(a(x)) + x), X))
        assert (traffic.inputs, traffic.on) == ((SIZE, 0), (2 * SIZE, 0))
        # One stage keeps everything to itself.
        assert traffic_of(ALONE).on == traffic_of(ALONE).back == (0,)

    @pytest.mark.parametrize(
        ("dtype", "size"),
        [(torch.uint8, 1), (torch.bool, 1), (HALF, 2), (FLOAT, 4), (torch.int32, 4), (torch.int64, 4)],
    )
    def test_elements_travel_in_the_devices_sizes(self, dtype: torch.dtype, size: int) -> None:
        assert traffic_of(skipping(offsets=dtype)).inputs[2] == BATCH * WIDTH * size

    @pytest.mark.parametrize(("last_ipu", "shared"), [(0, 0), (2, WEIGHT)])
    def test_another_ipu_gets_a_tied_weight_and_sends_its_part_of_the_gradient(self, last_ipu, shared) -> None:
        """Both pass through the stage between, with every micro-batch. On one IPU neither is copied."""
        traffic = traffic_of(tied(last_ipu))
        assert traffic.on == (SIZE + shared, SIZE + shared, 0)
        assert traffic.back == (0, SIZE + shared, SIZE + shared)

    def test_a_program_that_comes_back_to_an_ipu_has_a_stage_more_than_ipus(self) -> None:
        """G + 2 (K - 1) cycles and 2 (K - 1 - s) + 1 slots for K stages: three here, on two IPUs."""
        order = order_of(program(tied(0), accumulation=10))
        assert [stage.ipu for stage in tied(0).stages] == [0, 1, 0]
        assert order.rounds[0].cycles == 10 + 2 * 2
        assert order.slots == (5, 3, 0)


class TestPasses:
    def test_a_stage_takes_its_ops_and_control_code(self) -> None:
        fixed = calibrated().pipeline.stage_pass_cycles
        costs, last = costs_of(STEP, SETTINGS), works(program())[1]
        ops = SETTINGS.device.total(total_of(costs.of(ipu=1, phase=Phase.FORWARD)))
        assert last.forward.total == pytest.approx(ops + fixed)
        assert last.recompute.total == 0

    @pytest.mark.parametrize(("stages", "programs"), [(1, 1), (2, 3), (3, 5)])
    def test_a_micro_batch_runs_two_programs_a_stage_and_one_in_the_last(self, stages: int, programs: int) -> None:
        """2K - 1: the last stage goes on from forward to backward pass; recomputation is part of a backward program."""
        chosen = program(chain(stages), recomputation=Recomputation.PIPELINE)
        without = replace(calibrated(), pipeline=replace(calibrated().pipeline, stage_pass_cycles=0.0))
        free = replace(SETTINGS, device=replace(SETTINGS.device, calibration=without))
        spent = (sum(stage.total for stage in works(replace(chosen, settings=s))) for s in (SETTINGS, free))
        assert next(spent) - next(spent) == pytest.approx(programs * calibrated().pipeline.stage_pass_cycles)

    def test_stashes_are_copied_by_dynamic_slices(self) -> None:
        """With recomputation, stage 0 stashes its input: [16, 128] fp32, two elements on each of 1024 tiles or so.

        The slice's index goes to all tiles (4 bytes, one exchange), and is incremented and reduced on one tile.
        """
        chosen = program(recomputation=Recomputation.PIPELINE)
        stashing, direct = works(chosen)[0], works(replace(chosen, execution=Execution.SHARDED))[0]
        device, on_tile = SETTINGS.device, costs_of(STEP, SETTINGS).layouts[INPUT].on_tile
        counting = 2 * vertices.elementwise(device, 1, Element.INT, ("add",), vertices.BROADCAST_SCALAR)
        index = 4 / 4 + device.constants.exchange_fixed_cycles + device.sync_cycles
        copy = vertices.dynamic_slice(device, 1, on_tile, Element.FLOAT) + counting + index
        assert stashing.forward.total - direct.forward.total == pytest.approx(copy)
        assert stashing.backward.total - direct.backward.total == pytest.approx(copy)

    def test_gradients_are_added_up_only_with_accumulation_and_io_tiles_slow_the_others_down(self) -> None:
        one, more = (works(program(ALONE, accumulation=g))[0] for g in (1, 2))
        assert more.backward.total > one.backward.total
        assert more.forward == one.forward
        plain, reserved = (profiled(program(ALONE, io_tiles=tiles)).cycles[0] for tiles in (0, 192))
        extra = 1472 / (1472 - 192)
        assert reserved.do_exchange == pytest.approx(plain.do_exchange * extra)
        assert plain.on_tile_execute < reserved.on_tile_execute < plain.on_tile_execute * extra  # not control code

    def test_each_op_runs_once_a_micro_batch_or_iteration_and_again_where_recomputed(self) -> None:
        order = order_of(program(recomputation=Recomputation.PIPELINE, batching=Batching(4, 5)))
        assert order.kept.again
        assert {order.executions(name) for name in order.kept.again} == {40}
        others = [op for op in STEP.ops if op.is_backward or op.stage == 1]
        assert {order.executions(op.name) for op in others} == {20}
        step = chain(training=False)
        chosen = Program(step, False, batching=Batching(7), returns=Returns(Keep.ALL))
        order = order_of(chosen)
        assert {order.executions(op.name) for op in step.ops} == {7}
        assert order.rounds[0].cycles == 7 + 1
        assert profiled(chosen).shares["update"] == 0


OVERLAPPING = {"io_tiles": 32, "overlaps_input": True}
OFF_CHIP = placed(optimiser=Location(on_chip=False))


class TestTransfers:
    def test_overlapped_ones_hide_behind_the_work(self) -> None:
        """Of 5 micro-batches the first and the last one show; the work is larger than the transfer here."""
        beside = program(ALONE, **OVERLAPPING)
        times = [profiled(replace(beside, overlaps_input=overlaps)) for overlaps in (False, True)]
        streamed, showing = (time.shares["stream"] * time.device_cycles for time in times)
        assert showing < streamed
        syncs = 3 * beside.system.chip.global_sync_cycles
        assert times[0].device_cycles - times[1].device_cycles == pytest.approx(streamed - showing + syncs)
        # Sharded programs may overlap them, too.
        assert profiled(program(**OVERLAPPING, execution=Execution.SHARDED)).device_cycles > 0

    @pytest.mark.parametrize(
        ("step", "changes", "message"),
        [
            (ALONE, {"overlaps_input": True}, "I/O tiles, 32 to 192"),
            (STEP, OVERLAPPING, "sharded execution"),
            (STEP, {"locations": OFF_CHIP, "system": system_named("C600")}, "C600-server has no streaming memory"),
        ],
    )
    def test_what_no_device_can_do(self, step: Step, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(Error, match=message):
            profiled(program(step, **changes))

    @pytest.mark.parametrize(
        ("returns", "results"),
        [(Returns(Keep.FINAL), 1), (Returns(Keep.SUM), 1), (Returns(Keep.ALL), 20), (Returns(Keep.EVERY_N, 2), 10)],
    )
    def test_results_sent_in_a_call(self, returns: Returns, results: int) -> None:
        cycles = profiled(program(batching=Batching(4, 5), returns=returns)).cycles[1]
        assert cycles.stream_copy_mid == pytest.approx(results * (SIZE + 4) / 4.888e9 * 1.33e9)


PARAMETERS = WIDTH * WIDTH + WIDTH
RATE = 20e9  # of a machine's streaming memory, in bytes per second; two IPUs share it
AWAY = Location(on_chip=False)
ON_CHIP = Locations()
STREAMED = Hyper(variable=frozenset({"lr", "momentum"}))
LARGE_AWAY = Location(on_chip=False, least_off_chip=1000)


def streamed(ipu: int = 0, step: Step = STEP, locations: Locations = ON_CHIP, **changes: Any) -> float:
    plain, moved = (
        profiled(program(step, locations=where, **changes)).cycles[ipu].stream_copy_mid
        for where in (ON_CHIP, locations)
    )
    return (moved - plain) / 1.33e9


class TestOffChip:
    """Moves to and from streaming memory, of one call with five micro-batches and one update."""

    @pytest.mark.parametrize(
        ("where", "changes", "moved"),
        [
            # Adam's two fp32 moments of each parameter, both ways.
            ({"optimiser": AWAY}, {}, PARAMETERS * 2 * 4 * 2),
            ({"optimiser": LARGE_AWAY}, {}, WIDTH * WIDTH * 2 * 4 * 2),  # small tensors stay on chip
            # Read and written with every micro-batch and by the update.
            ({"accumulators": AWAY}, {}, (5 + 1) * 2 * PARAMETERS * 4),
            # Read for every pass and written by the update.
            ({"weights": AWAY}, {}, (5 * 2 + 2) * PARAMETERS * 4),
            # Written and read by every micro-batch: without recomputation stage 0 holds input and result of its ReLU.
            ({"activations": AWAY}, {}, 5 * 2 * 2 * SIZE),
            # Two replicas of two IPUs that update in turn: one IPU of each streams at a time.
            ({"optimiser": AWAY}, {"replicas": 2}, PARAMETERS * 2 * 4 * 2),
            # Four replicas of two IPUs: two on each machine. With sharding each of them moves its part.
            ({"optimiser": LARGE_AWAY}, {"replicas": 4}, WIDTH * WIDTH * 2 * 4 * 2),
            ({"optimiser": replace(LARGE_AWAY, sharded=True)}, {"replicas": 4}, WIDTH * WIDTH * 2 * 4 * 2 / 4),
            # PopART makes the simple op of SGD without momentum, with an accumulator and no velocity. With momentum the
            # state is a velocity, and so with poptorch.optim.SGD(momentum=0.0), because it streams its momentum.
            ({"optimiser": AWAY}, {"optimiser": OptimiserSpec("SGD1", Hyper(lr=0.1))}, 0),
            ({"optimiser": AWAY}, {"optimiser": OptimiserSpec("SGD2", Hyper(lr=0.1))}, 0),
            ({"optimiser": AWAY}, {"optimiser": OptimiserSpec("SGD2", Hyper(momentum=0.9))}, PARAMETERS * 4 * 2),
            ({"optimiser": AWAY}, {"optimiser": OptimiserSpec("SGD2", STREAMED)}, PARAMETERS * 4 * 2),
        ],
    )
    def test_what_is_moved(self, where: dict[str, Location], changes: dict[str, Any], moved: float) -> None:
        assert streamed(locations=placed(**where), **changes) == pytest.approx(moved / (RATE / 2))

    def test_ipus_that_work_at_once_share_the_rate(self) -> None:
        """IPU 1 has twice the parameters. Both get half of the rate until IPU 0 ends, then IPU 1 gets all of it."""
        step = stepped(layers_on([0, 1, 1]), X)
        moved, where = PARAMETERS * 2 * 4 * 2, placed(optimiser=AWAY)
        assert streamed(0, step, where) == pytest.approx(2 * moved / RATE)
        assert streamed(1, step, where) == pytest.approx(2 * moved / RATE + moved / RATE)
        # Weights, in sharded execution: each pass has the whole rate; both IPUs update at once and share it.
        passes, update = 5 * 2 * PARAMETERS * 4 / RATE, 2 * PARAMETERS * 4 / (RATE / 2)
        seconds = streamed(locations=placed(weights=AWAY), execution=Execution.SHARDED)
        assert seconds == pytest.approx(passes + update)

    def test_the_device_synchronises_before_each_transfer(self) -> None:
        """Adam's state of two tensors, read and written: four times 600 cycles of global synchronisation."""
        plain, moved = (profiled(program(locations=where)) for where in (Locations(), placed(optimiser=AWAY)))
        assert moved.cycles[0].stream_copy_begin - plain.cycles[0].stream_copy_begin == pytest.approx(4 * 600)
        assert moved.shares["offload"] > plain.shares["offload"] == 0
        assert any(span.kind == "offload" for span in moved.timeline)


@given(st.dictionaries(st.integers(0, 9), st.floats(0, 1e9), min_size=1, max_size=6))
def test_shared_transfers_end_when_their_machine_has_moved_everything(sizes: dict[int, float]) -> None:
    """The rate is never idle: the last one ends after all bytes; none ends before its own bytes could have moved."""
    ends = shared_seconds(sizes, 1e6)
    assert max(ends.values()) == pytest.approx(sum(sizes.values()) / 1e6)
    assert all(ends[key] >= size / 1e6 * (1 - 1e-9) for key, size in sizes.items())


SPLIT = placed(optimiser=Location(sharded=True))
LAMB = OptimiserSpec("LAMB", Hyper(lr=1e-3))
ACCUMULATORS_SPLIT = placed(accumulators=Location(sharded=True))
COPIES = (5 + 2) * SIZE / (160e9 * calibrated().pipeline.copy_link_share)  # in a pipeline of two, five micro-batches


class TestReplicas:
    def test_a_tensor_without_elements_has_no_parts(self) -> None:
        linear = nn.Linear(WIDTH, WIDTH)
        linear.empty = nn.Parameter(torch.ones(0, WIDTH))
        joined = calling(lambda linear, x: torch.cat([linear(x), x @ linear.empty.T], 1), linear)
        everything = Location(sharded=True, on_chip=False, least_sharded=0, least_off_chip=0)
        locations = Locations(*[everything] * 4)
        assert profiled(program(stepped(Trained(joined), X), replicas=2, locations=locations)).device_cycles > 0

    def test_gradients_meet_at_the_update_only_and_weights_in_parts_are_gathered_for_every_pass(self) -> None:
        alone, pair = (profiled(program(replicas=r)) for r in (1, 2))
        assert pair.shares["collective"] > alone.shares["collective"] == 0
        assert pair.shares["main"] * pair.device_cycles == pytest.approx(alone.shares["main"] * alone.device_cycles)
        gathered = profiled(program(replicas=4, locations=placed(weights=Location(sharded=True))))
        assert sum(span.kind == "collective" for span in gathered.timeline if span.stage == 0) > 5

    # Sizes of tensors that are scattered, gathered and reduced in an update, and seconds of other copies.
    @pytest.mark.parametrize(
        ("step", "changes", "scattered", "gathered", "reduced", "copies"),
        [
            # Gradients travel in the accumulators' type; without accumulation there are none, and it is the weights'.
            (ALONE, {}, [], [], [WEIGHT, BIAS], 0),
            (ALONE, {"optimiser": HALVED}, [], [], [WEIGHT / 2, BIAS / 2], 0),
            (ALONE, {"optimiser": HALVED, "accumulation": 1}, [], [], [WEIGHT, BIAS], 0),
            # The norms of LAMB are added up over replicas that update parts: two numbers for each weight that is split,
            # those of the weight and of its update; none for the bias, which is too small.
            (ALONE, {"optimiser": LAMB, "locations": SPLIT}, [WEIGHT], [WEIGHT], [4, 4, BIAS], 0),
            # Accumulators in parts: a reduce-scatter of the weight in every backward pass instead of the update.
            (STEP, {"locations": ACCUMULATORS_SPLIT}, [WEIGHT] * 5, [WEIGHT], [BIAS], COPIES),
        ],
    )
    def test_what_four_replicas_exchange(self, step, changes, scattered, gathered, reduced, copies) -> None:
        chosen = program(step, replicas=4, **changes)
        ring = ring_of(chosen)
        parts = [*map(ring.reduce_scatter, scattered), *map(ring.all_gather, gathered)]
        exchanged = profiled(chosen).cycles[0].global_exchange / 1.33e9
        assert exchanged == pytest.approx(sum(parts) + sum(map(ring.all_reduce, reduced)) + copies)


def often(step: Step, accumulation: int, replicas: int = 1) -> Program:
    """Return a program with so many updates in a call that starting the call takes next to nothing."""
    return program(step, batching=Batching(device_iterations=100, accumulation=accumulation, replicas=replicas))


def inference(model: nn.Module, x: Tensor, iterations: int) -> Program:
    return Program(stepped(Trained(model), x, training=False), False, batching=Batching(iterations))


@pytest.mark.parametrize(
    ("chosen", "limit"),
    [
        (often(chain(4), accumulation=7), "pipeline fill and flush"),
        (often(chain(4), accumulation=1000), "stage "),
        (often(chain(1, width=1024), accumulation=1, replicas=64), "weight update"),
        (inference(nn.Linear(64, 64), torch.zeros(4, 64), 1), "run start"),
        (inference(nn.Linear(64, 64), torch.zeros(4, 64), 1000), "st"),  # a stage, or streams
        (inference(nn.ReLU(), torch.zeros(64, 3, 224, 224), 10), "stream"),
    ],
)
def test_what_limits_a_program(chosen: Program, limit: str) -> None:
    assert profiled(chosen).limited_by.startswith(limit)


# --- collectives between replicas: rings, and what lies beyond one rack


def ring(replicas: int, system: str = "POD256") -> Ring:
    return ring_of(program(ALONE, replicas=replicas, system=system_named(system)))


@given(replicas=st.integers(1, 256), size=st.floats(0, 1e9))
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather_and_no_faster_with_more_replicas(replicas, size) -> None:
    found = ring(replicas)
    halves = found.reduce_scatter(size) + found.all_gather(size)
    assert found.all_reduce(size) == pytest.approx(halves - found.call_seconds if replicas > 1 else 0.0)
    if replicas > 1:
        assert found.all_reduce(size) >= ring(replicas - 1).all_reduce(size)
    else:  # nobody to talk to
        assert halves == 0


@given(replicas=st.integers(2, 64), size=st.floats(0, 1e9))
def test_each_ipu_moves_twice_r_less_one_rths(replicas: int, size: float) -> None:
    found = replace(ring(replicas), call_seconds=0.0, hop_seconds=0.0)
    moved = found.all_reduce(size) * found.link_bytes_per_second
    assert moved == pytest.approx(2 * (replicas - 1) / replicas * size)


def test_links_join_sixty_four_ipus_and_gateways_join_racks() -> None:
    """GW-Links: 25 GB/s a machine, shared by its four replicas; each IPU carries a 64th of the tensor."""
    sizes = [(ring(64), 64, 1), (ring(256), 64, 4), (ring(16, "DSS8440"), 16, 1)]  # cards in one server have none
    assert all((found.near, found.groups) == (near, groups) for found, near, groups in sizes)
    found = replace(ring(128), call_seconds=0.0, hop_seconds=0.0)
    within = 2 * 63 / 64 * 64e6 / found.link_bytes_per_second
    across = 2 * 1 / 2 * 1e6 / (25e9 / 4)
    assert found.all_reduce(64e6) == pytest.approx(within + across)
