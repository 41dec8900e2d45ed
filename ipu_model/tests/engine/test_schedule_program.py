"""Programs with captured graphs: bytes by stage, passes and copies, how often ops run, and what options change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from cost_support import SETTINGS, Trained
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_support import profiled
from torch import Tensor, nn
from tracing_support import traced

from ipu_model.batching import Batching, Keep, Returns
from ipu_model.capture.describe import step_of
from ipu_model.capture.graph import Graph, TensorSpec, info_of
from ipu_model.errors import Error
from ipu_model.optimiser import Hyper, OptimiserSpec
from ipu_model.predict import vertices
from ipu_model.predict.calibration import calibrated
from ipu_model.predict.costs import costs_of
from ipu_model.predict.device import Element
from ipu_model.predict.hardware import system_named
from ipu_model.predict.links import ring_of
from ipu_model.predict.order import held_tensors, order_of, traffic_of
from ipu_model.predict.program import Execution, Location, Locations, Program, Recomputation
from ipu_model.predict.recomputation import kept_for_backward
from ipu_model.predict.remote import shared_seconds
from ipu_model.predict.work import StageWork, workload_of
from ipu_model.step import FLOAT16, Phase
from published.building import begin_block, captured

HALF, FLOAT = torch.float16, torch.float32
ADAM = OptimiserSpec("ADAM", Hyper(lr=1e-3))
BATCH, WIDTH = 16, 128


class Skipping(nn.Module):
    """Four linear layers on three IPUs; the last one also reads what the first one made, and a second input."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        begin_block(self.layers[1], 1)
        begin_block(self.layers[2], 2)

    def forward(self, values: Tensor, offsets: Tensor) -> Tensor:
        first = torch.relu(self.layers[0](values))
        middle = torch.relu(self.layers[1](first))
        last: Tensor = self.layers[3](torch.relu(self.layers[2](middle))) + first + offsets
        return last


class ReadTwice(nn.Module):
    """Two linear layers on two IPUs; both read the input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        begin_block(self.second, 1)

    def forward(self, values: Tensor) -> Tensor:
        last: Tensor = self.second(self.first(values)) + values
        return last


def skipping(*, training: bool = True, offsets: torch.dtype = FLOAT) -> Graph:
    inputs = torch.zeros(BATCH, WIDTH), torch.zeros(BATCH, WIDTH, dtype=offsets)
    return traced(Trained(Skipping()), *inputs, training=training)


def chain(ipus: int = 2, *, training: bool = True, width: int = WIDTH) -> Graph:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(ipus)))
    for ipu in range(1, ipus):
        begin_block(model[ipu], ipu)
    return traced(Trained(model), torch.zeros(BATCH, width), training=training)


GRAPH = chain()


def _stage(node: torch.fx.Node) -> int:
    return int(info_of(node).placement.ipu)


def _is_backward(node: torch.fx.Node) -> bool:
    return info_of(node).phase is Phase.BACKWARD


def program(graph: Graph = GRAPH, *, accumulation: int = 5, replicas: int = 1, **changes: Any) -> Program:
    batching = Batching(accumulation=accumulation, replicas=replicas)
    plain = Program(step_of(graph), True, batching=batching, optimiser=ADAM, system=system_named("POD256"))
    return replace(plain, **changes)


def updating_often(graph: Graph, *, accumulation: int, replicas: int = 1) -> Program:
    """Return a program with so many updates in a call that starting the call takes next to nothing."""
    batching = Batching(device_iterations=100, accumulation=accumulation, replicas=replicas)
    return program(graph, batching=batching)


def works(program: Program) -> tuple[StageWork, ...]:
    """Return what the stages of a program do for a micro-batch."""
    return workload_of(program, costs_of(program.step, program.settings), order_of(program)).stages


class TestTraffic:
    SIZE = BATCH * WIDTH * 4

    def test_inputs_go_to_the_stage_that_reads_them_first(self) -> None:
        assert traffic_of(step_of(skipping())).inputs == (self.SIZE, 0, self.SIZE)

    def test_an_input_of_several_stages_passes_through_those_between(self) -> None:
        """The stage that reads it first gets it from the host and sends it on."""
        graph = traced(Trained(ReadTwice()), torch.zeros(BATCH, WIDTH))
        assert traffic_of(step_of(graph)).inputs == (self.SIZE, 0)
        assert traffic_of(step_of(graph)).on == (2 * self.SIZE, 0)

    @pytest.mark.parametrize(
        ("dtype", "size"),
        [(torch.uint8, 1), (torch.bool, 1), (HALF, 2), (FLOAT, 4), (torch.int32, 4), (torch.int64, 4)],
    )
    def test_elements_travel_in_the_devices_sizes(self, dtype: torch.dtype, size: int) -> None:
        assert traffic_of(step_of(skipping(offsets=dtype))).inputs[2] == BATCH * WIDTH * size

    def test_results_leave_from_the_stage_that_makes_them(self) -> None:
        """The output of the last stage and the loss, one number."""
        assert traffic_of(step_of(skipping())).outputs == (0, 0, self.SIZE + 4)

    def test_what_a_later_stage_needs_passes_through_those_between(self) -> None:
        """Stage 0 sends one tensor to stages 1 and 2; stage 1 sends it on with its own result."""
        assert traffic_of(step_of(skipping())).on == (self.SIZE, 2 * self.SIZE, 0)

    def test_gradients_come_back_the_same_way(self) -> None:
        """Stage 2 sends two; stage 1 adds the gradient of what skipped it to its own and sends one on."""
        graph = skipping()
        (sums,) = (node for node in graph.ops.nodes if str(node.target) == "aten.add.Tensor" and _is_backward(node))
        assert _stage(sums) == 1
        assert traffic_of(step_of(graph)).back == (0, self.SIZE, 2 * self.SIZE)

    def test_inference_sends_nothing_back(self) -> None:
        assert traffic_of(step_of(skipping(training=False))).back == (0, 0, 0)

    def test_one_stage_keeps_everything_to_itself(self) -> None:
        assert traffic_of(step_of(chain(1))).on == traffic_of(step_of(chain(1))).back == (0,)


class Tied(nn.Module):
    """Three layers in three stages; the last one uses the first one's weight, on the IPU that it is given."""

    def __init__(self, last_ipu: int) -> None:
        super().__init__()
        self.first, self.middle, self.last = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.last.weight = self.first.weight
        begin_block(self.middle, 1)
        begin_block(self.last, last_ipu)

    def forward(self, values: Tensor) -> Tensor:
        last: Tensor = self.last(torch.relu(self.middle(torch.relu(self.first(values)))))
        return last


class TestTiedWeights:
    """A weight that two stages use: its gradient is the sum of two parts, made in either stage."""

    SIZE, WEIGHT = BATCH * WIDTH * 4, WIDTH * WIDTH * 4

    def graph(self, last_ipu: int) -> Graph:
        return captured(Trained(Tied(last_ipu)), TensorSpec.contiguous((BATCH, WIDTH), FLOAT))

    def test_on_one_ipu_neither_weight_nor_gradient_is_copied(self) -> None:
        """Only activations go on, and their gradients back."""
        found = traffic_of(step_of(self.graph(0)))
        assert [stage.ipu for stage in step_of(self.graph(0)).stages] == [0, 1, 0]
        assert found.on == (self.SIZE, self.SIZE, 0)
        assert found.back == (0, self.SIZE, self.SIZE)

    def test_another_ipu_gets_the_weight_and_sends_its_part_of_the_gradient(self) -> None:
        """Both pass through the stage between, with every micro-batch."""
        found = traffic_of(step_of(self.graph(2)))
        assert found.on == (self.SIZE + self.WEIGHT, self.SIZE + self.WEIGHT, 0)
        assert found.back == (0, self.SIZE + self.WEIGHT, self.SIZE + self.WEIGHT)

    def test_a_program_that_comes_back_to_an_ipu_has_a_stage_more_than_ipus(self) -> None:
        """G + 2 (K - 1) cycles and 2 (K - 1 - s) + 1 slots for K stages: three here, on two IPUs."""
        order = order_of(program(self.graph(0), accumulation=10))
        assert order.rounds[0].cycles == 10 + 2 * 2
        assert order.slots == (5, 3, 0)


class TestHeld:
    """What a stage keeps for its backward pass."""

    def held(self, mode: Recomputation, graph: Graph = GRAPH) -> dict[int, set[str]]:
        chosen = program(graph, recomputation=mode)
        found: dict[int, set[str]] = {0: set(), 1: set()}
        for each in held_tensors(chosen, kept_for_backward(chosen)):
            found[each.stage].add(each.tensor.name)
        return found

    def test_with_recomputation_only_what_entered_the_stage(self) -> None:
        assert self.held(Recomputation.PIPELINE)[0] == set(GRAPH.input_nodes)

    def test_without_it_also_results_that_gradients_need(self) -> None:
        """The input of a linear layer for its weights' gradient, the result of a ReLU for its own."""
        relus = {node.name for node in GRAPH.ops.nodes if "relu" in str(node.target) and _stage(node) == 0}
        assert self.held(Recomputation.NONE)[0] >= set(GRAPH.input_nodes)
        assert len(relus) == 1
        assert relus & self.held(Recomputation.NONE)[0]

    def test_with_recomputation_also_what_came_from_another_stage(self) -> None:
        """The middle stage of three starts again from what stage 0 sent: the result of its ReLU."""
        graph = chain(3)
        chosen = program(graph, recomputation=Recomputation.PIPELINE)
        held = held_tensors(chosen, kept_for_backward(chosen))
        (middle,) = (each for each in held if each.stage == 1)
        maker = step_of(graph).producer(middle.tensor.name)
        assert maker is not None
        assert (maker.kind, maker.stage) == ("relu", 0)

    def test_inference_holds_nothing(self) -> None:
        graph = chain(training=False)
        chosen = replace(program(graph), training=False)
        assert held_tensors(chosen, kept_for_backward(chosen)) == ()


class TestPasses:
    def test_a_stage_takes_its_ops_and_control_code(self) -> None:
        fixed = calibrated().pipeline.stage_pass_cycles
        costs, device = costs_of(step_of(GRAPH), SETTINGS), SETTINGS.device
        last = works(program())[1]
        assert last.forward.total == pytest.approx(device.total(costs.cycles(ipu=1, phase=Phase.FORWARD)) + fixed)
        assert last.recompute.total == 0

    @pytest.mark.parametrize(("stages", "programs"), [(1, 1), (2, 3), (3, 5)])
    def test_a_micro_batch_runs_two_programs_a_stage_and_one_in_the_last(self, stages: int, programs: int) -> None:
        """2K - 1: the last stage goes on from forward to backward pass; recomputation is part of a backward program."""
        chosen = program(chain(stages), recomputation=Recomputation.PIPELINE)
        without = replace(calibrated(), pipeline=replace(calibrated().pipeline, stage_pass_cycles=0.0))
        settings = replace(SETTINGS, device=replace(SETTINGS.device, calibration=without))
        spent = (sum(stage.total for stage in works(replace(chosen, settings=s))) for s in (SETTINGS, settings))
        assert next(spent) - next(spent) == pytest.approx(programs * calibrated().pipeline.stage_pass_cycles)

    def test_recomputation_repeats_ops_in_all_stages_but_the_last(self) -> None:
        none, again = (works(program(recomputation=mode)) for mode in (Recomputation.NONE, Recomputation.PIPELINE))
        assert none[0].recompute.total == 0
        assert again[0].recompute.total > 0
        assert again[1] == none[1]

    def test_stashes_are_copied_by_dynamic_slices(self) -> None:
        """With recomputation, stage 0 stashes its input: [16, 128] fp32, two elements on each of 1024 tiles or so.

        The slice's index goes to all tiles (4 bytes, one exchange), and is incremented and reduced on one tile.
        """
        chosen = program(recomputation=Recomputation.PIPELINE)
        stashing = works(chosen)[0]
        direct = works(replace(chosen, execution=Execution.SHARDED))[0]
        (name,) = GRAPH.input_nodes
        on_tile = costs_of(step_of(GRAPH), SETTINGS).layouts[name].on_tile
        device = SETTINGS.device
        counting = 2 * vertices.elementwise(device, 1, Element.INT, ("add",), vertices.BROADCAST_SCALAR)
        index = 4 / 4 + device.constants.exchange_fixed_cycles + device.sync_cycles
        copy = vertices.dynamic_slice(device, 1, on_tile, Element.FLOAT) + counting + index
        assert stashing.forward.total - direct.forward.total == pytest.approx(copy)
        assert stashing.backward.total - direct.backward.total == pytest.approx(copy)

    def test_gradients_are_added_up_only_with_accumulation(self) -> None:
        one, more = (works(program(chain(1), accumulation=g))[0] for g in (1, 2))
        assert more.backward.total > one.backward.total
        assert more.forward == one.forward

    def test_io_tiles_slow_the_others_down(self) -> None:
        plain, reserved = (profiled(program(chain(1), io_tiles=tiles)).cycles[0] for tiles in (0, 192))
        extra = 1472 / (1472 - 192)
        assert reserved.do_exchange == pytest.approx(plain.do_exchange * extra)
        assert plain.on_tile_execute < reserved.on_tile_execute < plain.on_tile_execute * extra  # not control code

    def test_io_tiles_leave_some(self) -> None:
        with pytest.raises(Error, match="1472 I/O tiles leave none of the 1472 tiles"):
            profiled(program(io_tiles=1472))


class TestOverlappedTransfers:
    """PopTorch offers them without a pipeline only (set_overlap_for_input)."""

    def overlapping(self, **changes: Any) -> Program:
        return replace(program(chain(1), io_tiles=32, overlaps_input=True), **changes)

    def test_they_hide_behind_the_work(self) -> None:
        """Of 5 micro-batches the first and the last one show; the work is larger than the transfer here."""
        plain, beside = (profiled(self.overlapping(overlaps_input=o)) for o in (False, True))
        streamed, showing = (time.shares["stream"] * time.device_cycles for time in (plain, beside))
        assert showing < streamed
        syncs = 3 * self.overlapping().system.chip.global_sync_cycles
        assert plain.device_cycles - beside.device_cycles == pytest.approx(streamed - showing + syncs)

    def test_they_need_tiles(self) -> None:
        with pytest.raises(Error, match="I/O tiles, 32 to 192"):
            profiled(replace(self.overlapping(), io_tiles=0))

    def test_pipelines_refuse_them_and_sharded_programs_do_not(self) -> None:
        chosen = program(io_tiles=32, overlaps_input=True)
        with pytest.raises(Error, match="sharded execution"):
            profiled(chosen)
        assert profiled(replace(chosen, execution=Execution.SHARDED)).device_cycles > 0


class TestExecutions:
    def test_each_op_runs_once_a_micro_batch_and_again_where_recomputed(self) -> None:
        chosen = program(recomputation=Recomputation.PIPELINE, batching=Batching(4, 5))
        order, ops = order_of(chosen), chosen.step.ops
        assert order.kept.again
        assert {order.executions(name) for name in order.kept.again} == {40}
        assert {order.executions(op.name) for op in ops if op.is_backward} == {20}
        assert {order.executions(op.name) for op in ops if op.stage == 1} == {20}

    def test_inference_runs_every_op_once_a_device_iteration(self) -> None:
        graph = chain(training=False)
        chosen = Program(step_of(graph), False, batching=Batching(7), returns=Returns(Keep.ALL))
        order = order_of(chosen)
        assert {order.executions(op.name) for op in chosen.step.ops} == {7}
        assert order.rounds[0].cycles == 7 + 1
        assert profiled(chosen).shares["update"] == 0


class TestReturns:
    OUTPUT = BATCH * WIDTH * 4 + 4

    @pytest.mark.parametrize(
        ("returns", "results"),
        [
            (Returns(Keep.FINAL), 1),
            (Returns(Keep.SUM), 1),
            (Returns(Keep.ALL), 20),
            (Returns(Keep.EVERY_N, 2), 10),
            (Returns(Keep.EVERY_N, 1), 20),
        ],
    )
    def test_results_sent_in_a_call(self, returns: Returns, results: int) -> None:
        cycles = profiled(program(batching=Batching(4, 5), returns=returns)).cycles[1]
        seconds = results * self.OUTPUT / 4.888e9
        assert cycles.stream_copy_mid == pytest.approx(seconds * 1.33e9)


class TestOffChip:
    """Moves to and from streaming memory: 20 GB/s a machine, shared by the IPUs in use."""

    PARAMETERS = WIDTH * WIDTH + WIDTH

    def locations(self, **where: Location) -> Locations:
        return replace(Locations(), **where)

    def extra(self, ipu: int = 0, replicas: int = 1, graph: Graph = GRAPH, **where: Location) -> float:
        """Return the seconds of one update that IPU `ipu` has more because of these locations."""
        plain, moved = (
            profiled(program(graph, replicas=replicas, locations=locations)).cycles[ipu].stream_copy_mid
            for locations in (Locations(), self.locations(**where))
        )
        return (moved - plain) / 1.33e9

    def test_optimiser_state_is_read_and_written_by_each_update(self) -> None:
        """Adam's two fp32 moments of each parameter, both ways, at half of the machine's rate: two IPUs."""
        expected = self.PARAMETERS * 2 * 4 * 2 / (20e9 / 2)
        assert self.extra(optimiser=Location(on_chip=False)) == pytest.approx(expected)

    @pytest.mark.parametrize("family", ["SGD1", "SGD2"])
    def test_sgd_without_momentum_has_no_state_to_move(self, family: str) -> None:
        """PopART makes the simple op, with an accumulator and no velocity; with momentum the state is a velocity."""
        locations = self.locations(optimiser=Location(on_chip=False))
        plain, heavy = (
            profiled(program(optimiser=OptimiserSpec(family, hyper), locations=locations)).shares["offload"]
            for hyper in (Hyper(lr=0.1), Hyper(lr=0.1, momentum=0.9))
        )
        assert plain == 0
        assert heavy > 0

    def test_momentum_of_zero_that_may_change_has_a_velocity_to_move(self) -> None:
        """poptorch.optim.SGD(..., momentum=0.0) streams its momentum, so the program is compiled with a velocity."""
        hyper = Hyper(lr=0.1, variable=frozenset({"lr", "momentum"}))
        plain, moved = (
            profiled(program(optimiser=OptimiserSpec("SGD2", hyper), locations=locations)).cycles[0].stream_copy_mid
            for locations in (Locations(), self.locations(optimiser=Location(on_chip=False)))
        )
        velocity = self.PARAMETERS * 4 * 2 / (20e9 / 2)
        assert (moved - plain) / 1.33e9 == pytest.approx(velocity)

    def test_small_tensors_stay_on_chip(self) -> None:
        weights_only = WIDTH * WIDTH * 2 * 4 * 2 / (20e9 / 2)
        assert self.extra(optimiser=Location(on_chip=False, least_off_chip=1000)) == pytest.approx(weights_only)

    def test_accumulators_move_with_every_micro_batch_and_the_update(self) -> None:
        expected = (5 + 1) * 2 * self.PARAMETERS * 4 / (20e9 / 2)
        assert self.extra(accumulators=Location(on_chip=False)) == pytest.approx(expected)

    def test_weights_are_read_for_every_pass_and_written_by_the_update(self) -> None:
        expected = (5 * 2 + 2) * self.PARAMETERS * 4 / (20e9 / 2)
        assert self.extra(weights=Location(on_chip=False)) == pytest.approx(expected)

    def test_activations_are_written_and_read_by_every_micro_batch(self) -> None:
        """Without recomputation stage 0 holds its input and the result of its ReLU."""
        expected = 5 * 2 * 2 * BATCH * WIDTH * 4 / (20e9 / 2)
        assert self.extra(activations=Location(on_chip=False)) == pytest.approx(expected)

    def test_an_ipu_that_goes_on_alone_has_the_whole_rate(self) -> None:
        """IPU 1 has twice the parameters. Both get half of the rate until IPU 0 ends, then IPU 1 gets all of it."""
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)))
        begin_block(model[1], 1)
        graph = traced(Trained(model), torch.zeros(BATCH, WIDTH))
        moved = self.PARAMETERS * 2 * 4 * 2
        state = Location(on_chip=False)
        assert self.extra(0, graph=graph, optimiser=state) == pytest.approx(2 * moved / 20e9)
        assert self.extra(1, graph=graph, optimiser=state) == pytest.approx(2 * moved / 20e9 + moved / 20e9)

    def test_ipus_that_update_in_turn_do_not_share_the_rate(self) -> None:
        """Two replicas of two IPUs: one IPU of each streams at a time, and each replica has half of the machine."""
        moved = self.PARAMETERS * 2 * 4 * 2
        assert self.extra(replicas=2, optimiser=Location(on_chip=False)) == pytest.approx(moved / (20e9 / 2))

    def test_ipus_that_work_one_after_another_do_not_share_the_rate(self) -> None:
        """Weights, in sharded execution: each pass has the whole rate; both IPUs update at once and share it."""
        locations = self.locations(weights=Location(on_chip=False))
        plain, moved = (
            profiled(program(locations=where, execution=Execution.SHARDED)).cycles[0].stream_copy_mid
            for where in (Locations(), locations)
        )
        passes, update = 5 * 2 * self.PARAMETERS * 4 / 20e9, 2 * self.PARAMETERS * 4 / (20e9 / 2)
        assert (moved - plain) / 1.33e9 == pytest.approx(passes + update)

    def test_with_sharding_each_replica_moves_its_part(self) -> None:
        """Four replicas of two IPUs: two on each machine. IPUs update in turn, so one of each replica streams."""
        whole = self.extra(replicas=4, optimiser=Location(on_chip=False, least_off_chip=1000))
        part = self.extra(replicas=4, optimiser=Location(on_chip=False, sharded=True, least_off_chip=1000))
        assert whole == pytest.approx(WIDTH * WIDTH * 2 * 4 * 2 / (20e9 / 2))
        assert part == pytest.approx(whole / 4)

    def test_the_device_synchronises_before_each_transfer(self) -> None:
        """Adam's state of two tensors, read and written: four times 600 cycles of global synchronisation."""
        plain, moved = (
            profiled(program(locations=where)).cycles[0].stream_copy_begin
            for where in (Locations(), self.locations(optimiser=Location(on_chip=False)))
        )
        assert moved - plain == pytest.approx(4 * 600)

    def test_small_stashes_are_not_faster_off_chip(self) -> None:
        """A tensor of a few bytes takes longer to streaming memory than into a stash on the tiles."""
        small = program(chain(3, width=2), accumulation=100)
        away = replace(small, locations=self.locations(activations=Location(on_chip=False)))
        assert profiled(away).device_cycles > profiled(small).device_cycles

    def test_it_has_a_share_and_spans_of_its_own(self) -> None:
        schedule = profiled(program(locations=self.locations(optimiser=Location(on_chip=False))))
        assert schedule.shares["offload"] > 0
        assert any(span.kind == "offload" for span in schedule.timeline)

    def test_machines_without_streaming_memory_cannot(self) -> None:
        chosen = program(locations=self.locations(optimiser=Location(on_chip=False)), system=system_named("C600"))
        with pytest.raises(Error, match="C600-server has no streaming memory"):
            profiled(chosen)


@given(st.dictionaries(st.integers(0, 9), st.floats(0, 1e9), min_size=1, max_size=6))
def test_shared_transfers_end_when_their_machine_has_moved_everything(sizes: dict[int, float]) -> None:
    """The rate is never idle: the last one ends after all bytes; none ends before its own bytes could have moved."""
    ends = shared_seconds(sizes, 1e6)
    assert max(ends.values()) == pytest.approx(sum(sizes.values()) / 1e6)
    assert all(ends[key] >= size / 1e6 * (1 - 1e-9) for key, size in sizes.items())


class Joined(nn.Module):
    """A linear layer, and a weight without any element beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.empty = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.ones(0, WIDTH))

    def forward(self, values: Tensor) -> Tensor:
        return torch.cat([self.linear(values), values @ self.empty.T], 1)


class TestReplicas:
    def test_a_tensor_without_elements_has_no_parts(self) -> None:
        graph = traced(Trained(Joined()), torch.zeros(BATCH, WIDTH))
        everything = Location(sharded=True, on_chip=False, least_sharded=0, least_off_chip=0)
        locations = Locations(everything, everything, everything, everything)
        assert profiled(program(graph, replicas=2, locations=locations)).device_cycles > 0

    def test_gradients_meet_at_the_update_only(self) -> None:
        alone, pair = (profiled(program(replicas=r)) for r in (1, 2))
        assert alone.shares["collective"] == 0
        assert pair.shares["collective"] > 0
        assert pair.shares["main"] * pair.device_cycles == pytest.approx(alone.shares["main"] * alone.device_cycles)

    def test_gradients_travel_in_the_accumulators_type(self) -> None:
        """With accumulation; without, there are only gradients, of the weights' type."""
        half = replace(ADAM, accum_dtype=FLOAT16)
        for accumulation, optimiser, size in ((5, ADAM, 4), (5, half, 2), (1, half, 4)):
            chosen = program(chain(1), accumulation=accumulation, replicas=4, optimiser=optimiser)
            ring = ring_of(chosen)
            seconds = ring.all_reduce(WIDTH * WIDTH * size) + ring.all_reduce(WIDTH * size)
            assert profiled(chosen).cycles[0].global_exchange == pytest.approx(seconds * 1.33e9)

    def test_sharded_state_makes_the_update_cheaper(self) -> None:
        """Same bytes between replicas, a sixteenth of the update; tensors below 8192 elements are not split."""
        graph, locations = chain(width=512), replace(Locations(), optimiser=Location(sharded=True))
        whole = profiled(program(graph, replicas=16))
        parts = profiled(program(graph, replicas=16, locations=locations))
        assert parts.cycles[0].on_tile_execute < whole.cycles[0].on_tile_execute
        more_calls = 2e-6 * 1.33e9  # reduce-scatter and all-gather are two calls, an all-reduce is one
        assert parts.cycles[0].global_exchange == pytest.approx(whole.cycles[0].global_exchange + more_calls, rel=1e-3)

    def test_the_norms_of_lamb_are_added_up_over_replicas_that_update_parts(self) -> None:
        """Two numbers for each weight that is split, those of the weight and of its update; none otherwise."""
        lamb = OptimiserSpec("LAMB", Hyper(lr=1e-3))
        locations = replace(Locations(), optimiser=Location(sharded=True))
        chosen = program(chain(1), replicas=4, optimiser=lamb, locations=locations)
        ring, weight, bias = ring_of(chosen), WIDTH * WIDTH * 4, WIDTH * 4
        split = ring.reduce_scatter(weight) + ring.all_gather(weight) + 2 * ring.all_reduce(4)
        expected = split + ring.all_reduce(bias)
        assert profiled(chosen).cycles[0].global_exchange == pytest.approx(expected * 1.33e9)

    def test_accumulators_in_parts_take_each_micro_batchs_gradients(self) -> None:
        """A reduce-scatter of each weight (the bias is not split) in every backward pass instead of the update."""
        locations = replace(Locations(), accumulators=Location(sharded=True))
        chosen = program(replicas=4, locations=locations)
        ring, weight, bias = ring_of(chosen), WIDTH * WIDTH * 4, WIDTH * 4
        update = ring.all_gather(weight) + ring.all_reduce(bias)
        copies = (5 + 2) * BATCH * WIDTH * 4 / (160e9 * calibrated().pipeline.copy_link_share)
        seconds = profiled(chosen).cycles[0].global_exchange / 1.33e9
        assert seconds == pytest.approx(5 * ring.reduce_scatter(weight) + update + copies)

    @settings(max_examples=20)
    @given(replicas=st.integers(1, 63))
    def test_more_replicas_never_raise_the_throughput_of_one(self, replicas: int) -> None:
        """Unless state is split, which makes updates cheaper."""
        few, many = (profiled(program(replicas=r)).device_cycles for r in (replicas, replicas + 1))
        assert many >= few * (1 - 1e-9)

    def test_what_is_drawn_does_not_grow_with_replicas_and_accumulation(self) -> None:
        graph = chain(4)
        one, many = (
            profiled(program(graph, replicas=replicas, accumulation=accumulation))
            for replicas, accumulation in ((2, 64), (64, 1024))
        )
        assert len(many.timeline) == len(one.timeline)
        assert len(many.cycles) == 4

    def test_weights_in_parts_are_gathered_for_every_pass(self) -> None:
        locations = replace(Locations(), weights=Location(sharded=True))
        schedule = profiled(program(replicas=4, locations=locations))
        assert sum(span.kind == "collective" for span in schedule.timeline if span.stage == 0) > 5


class TestLimits:
    def test_a_pipeline_with_few_micro_batches_is_limited_by_fill_and_flush(self) -> None:
        few, many = (profiled(updating_often(chain(4), accumulation=g)) for g in (7, 1000))
        assert few.limited_by == "pipeline fill and flush"
        assert many.limited_by.startswith("stage ")

    def test_an_update_for_every_small_micro_batch(self) -> None:
        graph = chain(1, width=1024)
        assert profiled(updating_often(graph, accumulation=1, replicas=64)).limited_by == "weight update"

    def test_a_small_program_is_limited_by_the_start_of_each_call_until_a_call_does_more(self) -> None:
        graph = traced(Trained(nn.Linear(64, 64)), torch.zeros(4, 64), training=False)
        once, often = (profiled(Program(step_of(graph), False, batching=Batching(d))) for d in (1, 1000))
        assert once.limited_by == "run start"
        assert max(once.shares, key=lambda name: once.shares[name]) == "run start"
        assert often.limited_by != "run start"

    def test_large_inputs_with_little_to_do(self) -> None:
        graph = traced(Trained(nn.ReLU()), torch.zeros(64, 3, 224, 224), training=False)
        assert profiled(Program(step_of(graph), False, batching=Batching(10))).limited_by == "stream"

    @pytest.mark.parametrize("execution", list(Execution))
    def test_shares_are_parts_of_the_whole(self, execution: Execution) -> None:
        shares = profiled(program(execution=execution)).shares
        assert sum(shares.values()) == pytest.approx(1.0)
        assert shares["fill and flush"] == 0 if execution is Execution.SHARDED else shares["fill and flush"] > 0
