"""Every option on placement, memory or speed reaches the `Program` that is modelled (options reference 3 to 9)."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest
import torch
from executor_support import Module, inference, quiet
from hypothesis import given, settings
from hypothesis import strategies as st
from modelling_support import ROWS, Chain, batch, inferred, trainable, trained
from torch import Tensor, nn

import ipu_model
import poptorch
from ipu_model.batching import Keep
from ipu_model.front_ends import program_of_module
from ipu_model.predict.costs import costs_of
from ipu_model.predict.device import Work
from ipu_model.predict.program import Execution, Location, Program, Recomputation

OutputMode = poptorch.OutputMode


def popart(**keys: Any) -> Program:
    """Return a training program with keys of the backend."""
    options = trainable()
    for key, value in keys.items():
        options._Popart.set(key, value)
    return trained(options)


def with_(change: Callable[[poptorch.Options], Any], accumulation: int | None = None) -> Program:
    """Return a training program whose options are changed first."""
    options = trainable(2, accumulation)
    change(options)
    return trained(options)


def inference_of(change: Callable[[poptorch.Options], Any]) -> Program:
    options = quiet()
    change(options)
    return inferred(options, ipus=1)


def sharded(options: poptorch.Options) -> poptorch.Options:
    return options.setExecutionStrategy(poptorch.ShardedExecution())


def plain() -> Program:
    return trained(trainable())


def plain_inference() -> Program:
    return inferred(quiet().deviceIterations(2))


# Fields of the program, their values, and what makes the program so. The first rows of each group are PopTorch's
# defaults: results of the last step in training and all in inference; a pipeline, which recomputes when it trains.
ORTHOGONAL = poptorch.CommGroupType.Orthogonal
REACHED: dict[str, list[tuple[Any, Callable[[], Program]]]] = {
    "batching.replicas batching.input_group batching.orthogonal_groups": [
        ((4, 2, True), lambda: inference_of(lambda o: o.replicationFactor(4).inputReplicaGrouping(2, ORTHOGONAL)))
    ],
    # Processes have replicas of their own.
    "replicas": [(6, lambda: inference_of(lambda o: o.replicationFactor(2).Distributed.configureProcessId(1, 3)))],
    "returns.keep returns.period": [
        ((Keep.EVERY_N, 3), lambda: inference_of(lambda o: o.deviceIterations(6).outputMode(OutputMode.EveryN, 3)))
    ],
    "returns.keep": [
        (Keep.FINAL, plain),
        (Keep.ALL, plain_inference),
        (Keep.ALL, lambda: with_(lambda o: o.outputMode(OutputMode.All))),
        (Keep.SUM, lambda: with_(lambda o: o.outputMode(OutputMode.Sum))),
        (Keep.FINAL, lambda: with_(lambda o: o.outputMode(OutputMode.Final))),
    ],
    "execution ipus_per_replica": [
        ((Execution.PIPELINED, 2), plain),
        ((Execution.SHARDED, 2), lambda: with_(sharded, 1)),
        ((Execution.SHARDED, 2), lambda: popart(enablePipelining=False)),
    ],
    "synthetic_data": [(False, plain), (True, lambda: with_(lambda o: o.enableSyntheticData(True)))],
    "recomputation": [
        (Recomputation.PIPELINE, plain),
        (Recomputation.NONE, lambda: trained(trainable(1), ipus=1)),
        (Recomputation.NONE, plain_inference),
        (Recomputation.NONE, lambda: with_(sharded, 1)),
        (Recomputation.NONE, lambda: popart(autoRecomputation=0)),
        (Recomputation.STANDARD, lambda: popart(autoRecomputation=1)),
        (Recomputation.NORM_ONLY, lambda: popart(autoRecomputation=2)),
        (Recomputation.PIPELINE, lambda: popart(autoRecomputation=3)),
        (Recomputation.ALL, lambda: popart(autoRecomputation=4)),
    ],
    "settings.half_partials settings.half_partials_of_convolutions": [
        ((False, False), plain),
        ((True, True), lambda: with_(lambda o: o.Precision.setPartialsType(torch.half))),
        ((True, False), lambda: popart(partialsTypeMatMuls="half")),
        ((False, True), lambda: popart(convolutionOptions={"partialsType": "half"})),
    ],
    "settings.stable_norm": [(False, plain), (True, lambda: with_(lambda o: o.enableStableNorm(True)))],
    "io_tiles": [(0, plain), (64, lambda: with_(lambda o: o.TensorLocations.numIOTiles(64)))],
    "prefetch_depth": [
        (1, plain),
        (3, lambda: popart(defaultPrefetchBufferingDepth=3)),
        (4, lambda: popart(defaultBufferingDepth=4)),
        (4, lambda: popart(defaultPrefetchBufferingDepth=3, defaultBufferingDepth=4)),
        (0, lambda: popart(enablePrefetchDatastreams=False, defaultBufferingDepth=4)),
    ],
    "optimiser": [(None, plain_inference)],
    "name": [("training", plain), ("inference", plain_inference), ("net", lambda: with_(lambda o: o.modelName("net")))],
}


@pytest.mark.parametrize(
    ("fields", "expected", "make"),
    [pytest.param(fields, *row, id=f"{fields} {row[0]}") for fields, rows in REACHED.items() for row in rows],
)
def test_options_reach_the_program(fields: str, expected: Any, make: Callable[[], Program]) -> None:
    assert attrgetter(*fields.split())(make()) == expected


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_a_call_takes_rows_for_every_iteration_accumulation_and_replica(d: int, a: int, r: int) -> None:
    program = trained(trainable(1, a).deviceIterations(d).replicationFactor(r), ipus=1)
    assert program.samples_per_micro_batch == ROWS
    assert program.samples_per_call == ROWS * d * a * r
    assert (program.batching.device_iterations, program.batching.accumulation, program.replicas) == (d, a, r)


def test_phases_run_one_after_another_and_keep_their_tensors_off_chip_by_default() -> None:
    def forward(model: Any, x: Tensor) -> Tensor:
        with poptorch.Block("a", ipu_id=0):
            x = model.a(x)
        with poptorch.Block("b", ipu_id=0):
            return model.b(x)

    options = quiet().setExecutionStrategy(poptorch.SerialPhasedExecution("a", "b"))
    options.TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(True))
    phased = Module(forward, a=nn.Linear(8, 8), b=nn.Linear(8, 8))
    program = program_of_module(options, phased, torch.empty(2, 8))
    assert program.execution is Execution.SHARDED
    assert program.locations.activations == Location(on_chip=False)
    assert program.locations.weights == Location(on_chip=True)


class TestCosts:
    def test_memory_proportions_of_ipus(self) -> None:
        settings = with_(lambda o: o.setAvailableMemoryProportion({"IPU0": 0.2, "IPU1": 1})).settings
        assert (settings.proportion(0), settings.proportion(1)) == (0.2, 1.0)
        assert plain().settings.proportion(0) == 0.6  # PopLibs' default

    @pytest.mark.parametrize("share", [1.5, -0.1, "0.2", True, float("nan")])
    def test_a_proportion_that_no_tile_has_is_refused_with_its_ipu(self, share: Any) -> None:
        with pytest.raises(poptorch.Error, match=r"IPU1.* must be .*between 0 and 1"):
            trained(trainable().setAvailableMemoryProportion({"IPU1": share}))

    def test_a_memory_hint_changes_the_plan_of_its_op(self) -> None:
        hinted = product(lambda a, b: poptorch.set_available_memory(a @ b, 0.01))
        assert hinted.temporary_bytes < product(torch.matmul).temporary_bytes

    def test_a_product_in_slices_is_costed_as_such(self) -> None:
        columns, whole = poptorch.MatMulSerializationMode.OutputChannels, product(torch.matmul)
        sliced = product(lambda a, b: poptorch.serializedMatMul(a, b, columns, 64))
        assert sliced.cycles.phases > whole.cycles.phases
        assert sliced.flops == whole.flops


def product(function: Callable[[Tensor, Tensor], Tensor]) -> Work:
    """Return the cost of a product of two large matrices, which the model finds in the program."""
    large = torch.empty(4096, 4096, dtype=torch.float16, device="meta")
    program = program_of_module(quiet(), Module(lambda model, a, b: function(a, b)), (large, large))
    (op,) = costs_of(program.step, program.settings).ops
    return op.work


class TestTensorLocations:
    def test_the_backends_defaults(self) -> None:
        assert set(vars(plain().locations).values()) == {Location()}
        assert Location() == Location(on_chip=True, sharded=False, least_off_chip=2, least_sharded=8192)

    @pytest.mark.parametrize(
        ("setter", "field"),
        [
            ("setActivationLocation", "activations"),
            ("setWeightLocation", "weights"),
            ("setOptimizerLocation", "optimiser"),
            ("setAccumulatorLocation", "accumulators"),
        ],
    )
    def test_each_category_has_its_own(self, setter: str, field: str) -> None:
        options = trainable()
        wanted = poptorch.TensorLocationSettings().useOnChipStorage(False).useReplicatedTensorSharding(True)
        wanted.minElementsForOffChip(100).minElementsForReplicatedTensorSharding(200)
        getattr(options.TensorLocations, setter)(wanted.useIOTilesToLoad(True))
        expected = Location(on_chip=False, sharded=True, least_off_chip=100, least_sharded=200)
        locations = vars(trained(options).locations)
        assert {name: value for name, value in locations.items() if value != Location()} == {field: expected}


@pytest.mark.parametrize("mode", poptorch.OverlapMode)
def test_overlap_of_inputs_and_outputs(mode: poptorch.OverlapMode) -> None:
    expected = mode is not poptorch.OverlapMode.NoOverlap
    for function, overlapped in (
        (lambda model, x: poptorch.set_overlap_for_input(x, mode) + 1, (expected, False)),
        (lambda model, x: poptorch.set_overlap_for_output(x + 1, mode), (False, expected)),
    ):
        options = sharded(quiet())
        options.TensorLocations.numIOTiles(32)
        program = program_of_module(options, Module(function), torch.empty(2, 8))
        assert (program.overlaps_input, program.overlaps_output) == overlapped


def test_the_optimisers_family_and_groups() -> None:
    def adam(model: Chain) -> poptorch.optim.AdamW:
        first, second = model.layers
        groups = [{"params": first.parameters(), "lr": 0.1}, {"params": [second.weight], "lr": 0.2}]
        return poptorch.optim.AdamW(groups)

    program = trained(trainable(), optimizer=adam)
    assert program.optimiser is not None
    assert program.optimiser.family == "ADAMW"
    groups = {"layers.0.weight": 0, "layers.0.bias": 0, "layers.1.weight": 1, "layers.1.bias": None}
    assert program.groups == groups
    assert [program.optimiser.hyper(group).lr for group in (0, 1)] == [0.1, 0.2]
    # Training without one uses PopTorch's default.
    options = trainable()
    default = program_of_module(options, Chain(), batch(options), training=True).optimiser
    assert (default.family, default.default.lr) == ("SGD2", 0.01)


def test_a_reduction_to_an_empty_result_is_profiled() -> None:
    """It adds up rows of which there are none."""
    nothing = Module(lambda model, x: x[:, :0].sum(2) + x.sum((1, 2))[:, None][:, :0])
    wrapped = inference(nothing)
    assert wrapped(torch.ones(2, 3, 4)).shape == (2, 0)
    assert ipu_model.profile(wrapped).fits
