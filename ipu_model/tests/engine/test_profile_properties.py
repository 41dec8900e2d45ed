"""Whole profiles: rules that hold for every program, what limits one, and the names of its ops and tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hand_written import linear, tensor
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from net_support import Trained, calling, stepped
from torch import Tensor, nn

from ipu_model.batching import Batching, Keep, Returns
from ipu_model.errors import Error
from ipu_model.explore.options import with_byte_inputs, with_options
from ipu_model.optimiser import Hyper, OptimiserSpec
from ipu_model.predict import profile_program
from ipu_model.predict.costs import naming_of
from ipu_model.predict.device import CostSettings
from ipu_model.predict.hardware import known_hardware, system_named
from ipu_model.predict.host import HostWork, Loading
from ipu_model.predict.profile import CODE, EXCHANGE_CODE, PARAMETERS, RESERVED, OpProfile, Profile, Span
from ipu_model.predict.program import Execution, Location, Locations, Program, Recomputation
from ipu_model.report.files import from_json, to_json
from ipu_model.report.text import MOST_LINES, text_report
from ipu_model.step import FLOAT16, FLOAT32, Op, Source, step_of_ops, with_ops
from published.building import begin_block
from published.convolutional import day03_program

HALF = torch.float16
EXAMPLES = settings(max_examples=40)
ROUNDING = 1 + 1e-9
FAMILIES = ("SGD1", "SGD2", "ADAM", "ADAMW", "LAMB", "RMSPROP", "RMSPROP_CENTERED")


# --- captured models


def layers(ipus: int) -> nn.Module:
    first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 64))
    model = nn.Sequential(first, *(nn.Sequential(nn.ReLU(), nn.Linear(64, 64)) for _ in range(ipus - 1)))
    for ipu in range(1, ipus):
        begin_block(model[ipu], ipu)
    return model


def wide(ipus: int) -> nn.Module:
    model = nn.Sequential(nn.Linear(1024, 2048), nn.GELU(), nn.Linear(2048, 1024))
    if ipus > 1:
        begin_block(model[2], 1)
    return model


MODELS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 10)), torch.zeros(8, 128)),
    "cnn": (lambda: layers(1).half(), torch.zeros(4, 3, 8, 8, dtype=HALF)),
    "transformer": (lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), torch.zeros(2, 6, 32)),
    "lstm": (lambda: calling(lambda lstm, x: lstm(x)[0], nn.LSTM(6, 8, batch_first=True)), torch.zeros(2, 4, 6)),
    "words": (
        lambda: calling(lambda words, last, x: last(words(x).mean(1)), nn.Embedding(500, 32), nn.Linear(32, 5)),
        torch.zeros(4, 7, dtype=torch.int32),
    ),
    **{f"pipeline of {k}": (lambda k=k: layers(k), torch.zeros(4, 3, 8, 8)) for k in (2, 3, 4)},
    "wide": (lambda: wide(1), torch.zeros(16, 1024)),
    "wide pipeline": (lambda: wide(2).half(), torch.zeros(16, 1024, dtype=HALF)),
}
STEPS = {
    (name, training): stepped(Trained(make()) if training else make().eval(), inputs, training=training)
    for name, (make, inputs) in MODELS.items()
    for training in (True, False)
}


# --- programs

LOCATIONS = st.builds(
    Location, on_chip=st.booleans(), sharded=st.booleans(), least_off_chip=st.sampled_from([0, 2, 1000]),
    least_sharded=st.sampled_from([0, 64, 8192]),
)  # fmt: skip
HOSTS = st.builds(
    HostWork, seconds_per_sample=st.sampled_from([0.0, 1e-6, 1e-3]), seconds_per_call=st.sampled_from([0.0, 1e-4, 0.1]),
    loading=st.sampled_from(Loading), workers=st.sampled_from([0, 1, 8]),
)  # fmt: skip
OPTIMISERS = st.builds(
    OptimiserSpec, family=st.sampled_from(FAMILIES), default=st.builds(Hyper, weight_decay=st.sampled_from([0.0, 0.1])),
    accum_dtype=st.sampled_from([FLOAT16, FLOAT32]), first_dtype=st.sampled_from([FLOAT16, FLOAT32]),
)  # fmt: skip


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Draw a program; now and then one that the model refuses."""
    trains = draw(st.booleans())
    system = system_named(draw(st.sampled_from(sorted(known_hardware().systems))))
    plain = Program(STEPS[draw(st.sampled_from(tuple(MODELS))), trains], trains, system=system)
    overlaps = draw(st.booleans()) and draw(st.booleans())
    period = draw(st.integers(1, 3))
    batching = Batching(
        device_iterations=period * draw(st.sampled_from([1, 2, 100])),
        accumulation=draw(st.sampled_from([1, 2, 3, 7, 100])) if trains else 1,
        replicas=draw(st.sampled_from([1, 1, 2, 4])),
    )  # fmt: skip
    return replace(
        plain,
        batching=batching,
        returns=Returns(draw(st.sampled_from(Keep)), period),
        execution=draw(st.sampled_from(Execution)),
        settings=draw(cost_settings(plain)),
        optimiser=draw(st.none() | OPTIMISERS) if trains else None,
        recomputation=draw(st.sampled_from(Recomputation)) if trains else Recomputation.NONE,
        locations=draw(st.just(Locations()) | st.builds(Locations, LOCATIONS, LOCATIONS, LOCATIONS, LOCATIONS)),
        io_tiles=draw(st.sampled_from([32, 192] if overlaps else [0, 0, 32])),
        overlaps_input=overlaps,
        overlaps_output=overlaps and draw(st.booleans()),
        prefetch_depth=draw(st.integers(0, 3)),
        synthetic_data=draw(st.integers(0, 9)) == 9,
        processes=draw(st.sampled_from([1, 1, 2])),
    )


def cost_settings(program: Program) -> st.SearchStrategy[CostSettings]:
    """Draw partials, proportions and stable norms on the program's chip."""
    shares = st.dictionaries(st.sampled_from(program.step.ipus), st.sampled_from([0.0, 1e-6, 0.1, 1.0]))
    device = replace(program.settings.device, chip=program.system.chip)
    return st.builds(
        CostSettings, st.just(device), half_partials=st.booleans(), available_memory_proportion=shares,
        stable_norm=st.booleans(),
    )  # fmt: skip


def profiled(program: Program, host: HostWork | None = None) -> Profile:
    """Return a profile; what the model refuses is no example."""
    try:
        return profile_program(program, host)
    except Error:
        assume(False)
        raise


def numbers(value: Any, path: str = "profile") -> Iterator[tuple[str, float]]:
    """Yield every number in a profile with its place, but not those of the program that it is of."""
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value) if field.compare}
    if isinstance(value, (dict, tuple)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers(inner, f"{path}.{key}")
    elif isinstance(value, (int, float)):
        yield path, value


# --- every profile


@settings(max_examples=100)
@given(programs(), HOSTS)
def test_what_holds_for_every_profile(program: Program, host: HostWork) -> None:
    profile, batching = profiled(program, host), program.batching
    for path, number in numbers(profile):
        assert math.isfinite(number), path
        # Running sums of fractions of bytes leave rounding errors where nothing is left.
        assert number >= (-1e-6 if "liveness" in path else 0), path

    # Every IPU is accounted for all the time.
    assert len(profile.cycles) == len(profile.memory) == program.ipus_per_replica
    for cycles in profile.cycles:
        assert cycles.total == pytest.approx(profile.device_seconds_per_call * profile.machine.clock_hz)
    assert sum(profile.shares.values()) == pytest.approx(1.0)

    # A resource does one thing at a time within the call.
    rows: dict[str, list[Span]] = {}
    for span in profile.timeline:
        rows.setdefault(span.resource, []).append(span)
    tolerance = 1e-9 * profile.call_seconds
    for spans in rows.values():
        ordered = sorted(spans, key=lambda span: (span.start, span.end))
        assert ordered[0].start >= 0
        assert ordered[-1].end <= profile.call_seconds + tolerance
        for before, after in pairwise(ordered):
            assert before.end <= after.start + tolerance

    # Memory adds up on the fullest tile, on which categories are what is reported; no tile holds less than code.
    tiles = program.system.chip.tiles
    for memory in profile.memory:
        assert memory.tiles[memory.fullest_tile] == memory.max_tile_bytes == max(memory.tiles)
        by_category = memory.bytes_by_category
        on_tile = {category.name: category.tiles[memory.fullest_tile] for category in memory.categories}
        assert sum(by_category.values()) == pytest.approx(memory.max_tile_bytes)
        assert on_tile == pytest.approx(dict(by_category))
        most = max((step.bytes_on_tile for step in memory.liveness), default=0.0)
        assert memory.always_live_bytes + most == pytest.approx(memory.max_tile_bytes)
        parameters = sum(by_category.get(name, 0.0) for name in PARAMETERS)
        assert memory.max_tile_bytes * ROUNDING >= memory.always_live_bytes >= parameters / ROUNDING
        for category in memory.categories:
            assert len(category.tiles) == len(memory.tiles) == tiles
            assert sum(category.tiles) == pytest.approx(category.total_bytes), category.name
        code = next(category for category in memory.categories if category.name == EXCHANGE_CODE)
        assert code.total_bytes == pytest.approx(code.bytes_on_fullest_tile * tiles)
        assert min(memory.tiles) >= code.bytes_on_fullest_tile
        for tile in range(0, tiles, 97):
            assert sum(category.tiles[tile] for category in memory.categories) <= memory.tiles[tile] * ROUNDING

    # It can be written, read and printed.
    assert from_json(to_json(profile)) == profile
    assert 10 < len(text_report(profile).splitlines()) <= MOST_LINES

    # B x D x A x R samples, and every op for each of the D x A micro-batches of a replica.
    steps = batching.device_iterations * batching.accumulation
    rows_of_inputs = program.step.inputs[0].shape[0]
    assert profile.samples_per_call == rows_of_inputs * steps * batching.replicas * program.processes
    assert {op.executions for op in profile.ops} <= {steps, 2 * steps}


# --- what makes it faster or not


def clocked(program: Program, factor: float) -> Program:
    chip = replace(program.system.chip, clock_hz=program.system.chip.clock_hz * factor)
    device = replace(program.settings.device, chip=chip)
    return replace(
        program, system=replace(program.system, chip=chip), settings=replace(program.settings, device=device)
    )


TRAINED = programs().filter(lambda program: program.training)


class TestSpeed:
    @EXAMPLES
    @given(programs(), HOSTS, st.floats(1.0, 100.0))
    def test_what_never_slows_the_device(self, program: Program, host: HostWork, factor: float) -> None:
        before, clock = profiled(program, host), profiled(clocked(program, factor), host)
        assert clock.samples_per_second * ROUNDING >= before.samples_per_second
        assert clock.memory == before.memory
        longer = replace(program.batching, device_iterations=6 * program.batching.device_iterations)
        for after in (
            clock,
            profiled(replace(program, step=with_byte_inputs(program.step))),
            profiled(replace(program, prefetch_depth=program.prefetch_depth + 1)),
            profiled(replace(program, synthetic_data=True)),
            profiled(replace(program, batching=longer)),
        ):
            assert after.device_samples_per_second * ROUNDING >= before.device_samples_per_second

    @EXAMPLES
    @given(TRAINED, st.sampled_from([1, 3, 50]))
    def test_more_accumulation_never_slows_the_device_and_is_free_in_memory(self, program: Program, more: int) -> None:
        """From 2 on: without accumulation there are no gradients to add up."""
        some = max(2, program.batching.accumulation)
        batchings = (replace(program.batching, accumulation=count) for count in (some, some + more))
        before, after = (profiled(replace(program, batching=batching)) for batching in batchings)
        assert after.device_samples_per_second * ROUNDING >= before.device_samples_per_second
        assert after.memory == before.memory


# --- a program of two IPUs

DAY03 = day03_program(accumulation=8)


def test_ops_are_most_of_what_an_ipu_computes_and_a_loader_runs_before_the_call_or_beside_it() -> None:
    """OnTileExecute of IPU 1 = its ops + accumulation, update and passes, which are no ops of the graph."""
    profile = profile_program(DAY03, HostWork(1e-3))
    assert profile.samples_per_second == pytest.approx(512 / profile.call_seconds)
    assert profile.device_samples_per_second == pytest.approx(512 / profile.device_seconds_per_call)
    of_ops = sum(op.on_tile_execute * op.executions for op in profile.ops if op.ipu == 1)
    assert 0.9 * profile.cycles[1].on_tile_execute < of_ops < profile.cycles[1].on_tile_execute
    once = sum(op.flops for op in profile.ops) * 8  # without recomputation
    assert once < profile.flops_per_call < 1.4 * once
    assert profile.limited_by == "host loader"
    assert profile_program(DAY03, HostWork(seconds_per_call=1.0)).limited_by == "host call"
    load = next(span for span in profile.timeline if span.kind == "load")
    assert load.end <= min(span.start for span in profile.timeline if span.kind != "load")
    assert max(span.end for span in profile.timeline) == pytest.approx(profile.call_seconds)
    beside = profile_program(DAY03, HostWork(1e-4, loading=Loading.ASYNC))
    load = next(span for span in beside.timeline if span.kind == "load")
    assert (load.start, load.label) == (0.0, "loading the next call")


def test_a_large_system_is_as_little_work_as_a_small_one_and_a_machine_that_is_too_small_is_refused() -> None:
    """Equal cycles and replicas are counted, not run: as many spans and ops for 128 IPUs as for two."""
    large = replace(with_options(DAY03, replicas=64, gradient_accumulation=1024), system=system_named("POD256"))
    small, found = profile_program(with_options(DAY03, gradient_accumulation=16)), profile_program(large)
    assert len(found.timeline) <= len(small.timeline) + 8
    assert len(found.ops) == len(small.ops)
    with pytest.raises(Error, match=r"needs 8 IPUs \(2 for each of 4 replicas\), and M2000 has 4"):
        profile_program(with_options(DAY03, replicas=4))


# --- ops and tensors have the names of the user's modules, and a profile says what each op works on


@pytest.fixture(scope="module")
def resnet() -> Profile:
    """ResNet-101 over two IPUs with recomputation on the first."""
    return profile_program(replace(day03_program(), recomputation=Recomputation.PIPELINE))


def one(profile: Profile, name: str, phase: str = "forward") -> OpProfile:
    (found,) = [op for op in profile.work if op.name == name and op.phase == phase]
    return found


def test_ops_and_tensors_are_known_by_their_module_and_what_happens_there() -> None:
    naming = naming_of(linear())
    assert naming.ops == {
        "out": "fc: matrix product", "loss": "sum", "g_out": "backward expand", "g_x": "fc: data gradient",
        "g_w": "fc: weight gradient", "g_b": "fc: bias gradient", "g_r": "act: relu backward",
    }  # fmt: skip
    assert [naming.tensors[name] for name in ("w", "out", "x")] == ["fc.weight", "fc: matrix product", "x"]
    sources = {"x_1": Source.INPUT, "c_1": Source.CONSTANT, "s": Source.SEED}
    step = step_of_ops([], [(tensor(name, 4), source) for name, source in sources.items()])
    assert list(naming_of(step).tensors.values()) == ["x 1", "constant c 1", "gradient of the loss"]


@pytest.mark.parametrize(("kind", "name", "further"), [
    ("_to_copy", "cast", ()), ("bmm", "matrix product", ()), ("embedding_dense_backward", "embedding backward", ()),
    ("nll_loss2d_forward", "negative log-likelihood", ()), ("native_layer_norm", "layer norm", ()),
    ("_log_softmax_backward_data", "log softmax backward", ()),
    ("max_pool2d_with_indices_backward", "max pool backward", ()),
    ("_embedding_bag", "embedding bag", ()),  # its own name, without what only PyTorch needs
    ("native_batch_norm", "batch norm", ("batch norm, mean", "batch norm, inverse standard deviation")),
    ("max_pool2d_with_indices", "max pool", ("max pool, indices",)),
    ("sort", "sort", ("sort, result 2",)),
    ("convolution_backward", "data gradient", ("weight gradient", "bias gradient")),
])  # fmt: skip
def test_words_for_a_kind_of_op_and_its_further_results(kind: str, name: str, further: tuple[str, ...]) -> None:
    results = tuple(replace(tensor(f"r{k}", 4, producer="op"), index=k) for k in range(1 + len(further)))
    naming = naming_of(step_of_ops([Op("op", kind, results, scope="layer")], []))
    assert list(naming.tensors.values()) == [f"layer: {words}" for words in (name, *further)]
    if kind != "convolution_backward":
        assert naming.ops == {"op": f"layer: {name}"}


def test_name_scopes_of_the_program_are_part_of_the_path() -> None:
    step = with_ops(linear(), lambda op: replace(op, name_scopes=((0, "head"),)) if op.scope else op)
    assert naming_of(step).ops["out"] == "head.fc: matrix product"
    assert {op.scope for op in profile_program(Program(step, training=True)).ops if op.node == "out"} == {"head.fc"}


def test_updates_and_states_are_known_by_their_weights_and_types() -> None:
    spec = OptimiserSpec("ADAM", Hyper(lr=0.1), first_dtype=FLOAT16, second_dtype=FLOAT32)
    profile = profile_program(Program(linear(), training=True, optimiser=spec))
    assert [op.name for op in profile.updates] == ["fc.weight: update", "fc.bias: update"]
    states = {tensor.dtype for tensor in profile.memory[0].live_at_peak if tensor.category == "optimiser state"}
    assert states == {"float16", "float32"}


def test_names_of_a_captured_network(resnet: Profile) -> None:
    """The gradients of a convolution are told apart, no op keeps a number of the graph, classes are known."""
    conv = "model.layer3.8.conv2"
    names = {op.name for op in resnet.ops if op.scope == conv}
    assert {f"{conv}: {what}" for what in ("convolution", "data gradient", "weight gradient")} <= names
    assert [op.name for op in resnet.work if "_default" in op.name] == []
    assert resnet.layers[conv] == "Conv2d"


def test_a_convolution_and_its_gradient_say_what_they_work_on_and_where(resnet: Profile) -> None:
    forward = one(resnet, "model.conv1: convolution")
    assert forward.operands == ("float16[64, 3, 64, 64]", "float16[64, 3, 7, 7]")
    assert forward.results == ("float16[64, 64, 32, 32]",)
    # 2 bytes for each element of image, kernel and result.
    assert forward.accessed_bytes == 2 * (64 * 3 * 64**2 + 64 * 3 * 7**2 + 64 * 64 * 32**2)
    gradient = one(resnet, "model.layer3.8.conv2: weight gradient", "backward")
    assert gradient.results == ("float16[256, 256, 3, 3]",)
    assert gradient.operands == ("float16[64, 256, 4, 4]",) * 2
    assert "resnet.py" in forward.line
    assert "self.conv1(x)" in forward.line
    assert one(resnet, "model.conv1: weight gradient", "backward").line == forward.line


def test_no_contraction_is_faster_than_the_matrix_units(resnet: Profile) -> None:
    assert all(0 < op.utilisation <= 1 for op in resnet.work if op.flops)
    assert [op.utilisation for op in resnet.work if not op.flops and op.utilisation] == []
    # A GC200 does 62.5 TFLOP/s on fp16 with fp32 partials at 1.33 GHz: 1,472 tiles x 64 x 2 / 4 FLOPs a cycle x 2.
    peak = one(resnet, "model.conv1: convolution").peak_flops_per_cycle
    assert peak * resnet.machine.clock_hz == pytest.approx(day03_program().system.chip.peak_flops(2), rel=1e-9)


def test_only_the_first_stage_recomputes_and_its_phases_alternate(resnet: Profile) -> None:
    for op in resnet.ops:
        assert op.executions - op.recomputations == 8
        assert op.recomputations in ((0, 8) if op.stage == 0 and op.phase == "forward" else (0,))
    phases = [step.phase for step in resnet.memory[0].liveness if step.phase in ("recompute", "backward")]
    assert any(before != after for before, after in pairwise(phases))
    assert phases[0] == "recompute"
    known = {(op.node, op.part): (op.name, op.stage) for op in resnet.work}
    for memory in resnet.memory:
        assert all(known[step.node, step.part] == (step.name, step.stage) for step in memory.liveness)


def test_tensors_alive_at_the_peak_and_code_make_up_the_fullest_tile(resnet: Profile) -> None:
    """They add up to their categories, and all of them are in memory at the peak; the largest come first."""
    for memory in resnet.memory:
        alive = memory.live_at_peak
        by_category = {category.name: category for category in memory.categories}
        code = sum(by_category.pop(name).bytes_on_fullest_tile for name in (*CODE, RESERVED) if name in by_category)
        sizes = [tensor.bytes_on_fullest_tile for tensor in alive]
        assert sum(sizes) + code == pytest.approx(memory.max_tile_bytes)
        assert sizes == sorted(sizes, reverse=True)
        for name, category in by_category.items():
            own = [tensor for tensor in alive if tensor.category == name]
            assert sum(t.bytes_on_fullest_tile for t in own) == pytest.approx(category.bytes_on_fullest_tile)
            assert sum(t.total_bytes for t in own) == pytest.approx(category.total_bytes)
        assert all(tensor.first <= memory.peak <= tensor.last for tensor in alive)
        assert memory.liveness[memory.peak].bytes_on_tile == max(step.bytes_on_tile for step in memory.liveness)
