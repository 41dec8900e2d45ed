"""Every option on placement, memory or speed reaches the `Program` that is modelled (options reference 3 to 9).

So does the machine; queries for hardware say which one it is.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest
import torch
from executor_support import Module, quiet
from hypothesis import given, settings
from hypothesis import strategies as st
from modelling_support import ROWS, Chain, batch, inferred, trainable, trained
from torch import Tensor, nn

import poptorch
from ipu_model.batching import Keep
from ipu_model.front_ends import program_of_module
from ipu_model.predict.costs import costs_of
from ipu_model.predict.device import Work
from ipu_model.predict.hardware import system_named
from ipu_model.predict.program import Execution, Location, Program, Recomputation
from poptorch import poptorch_core

OutputMode = poptorch.OutputMode


def popart(**keys: Any) -> Program:
    options = trainable()
    for key, value in keys.items():
        options._Popart.set(key, value)
    return trained(options)


def with_(change: Callable[[poptorch.Options], Any], accumulation: int | None = None) -> Program:
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
    program = program_of_module(options, Module(forward, a=nn.Linear(8, 8), b=nn.Linear(8, 8)), torch.empty(2, 8))
    assert program.execution is Execution.SHARDED
    assert program.locations.activations == Location(on_chip=False)
    assert program.locations.weights == Location(on_chip=True)


class TestCosts:
    def test_memory_proportions_of_ipus(self) -> None:
        settings = with_(lambda o: o.setAvailableMemoryProportion({"IPU0": 0.2, "IPU1": 1})).settings
        assert (settings.proportion(0), settings.proportion(1)) == (0.2, 1.0)
        assert plain().settings.proportion(0) == 0.6  # PopLibs' default
        for share in (1.5, -0.1, "0.2", True, float("nan")):
            with pytest.raises(poptorch.Error, match=r"IPU1.* must be .*between 0 and 1"):
                with_(lambda o, share=share: o.setAvailableMemoryProportion({"IPU1": share}))

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


@pytest.mark.parametrize("into", poptorch.OverlapMode)
def test_overlap_of_inputs_and_outputs(into: poptorch.OverlapMode) -> None:
    none = poptorch.OverlapMode.NoOverlap
    for out in (none, poptorch.OverlapMode.OverlapDeviceIterationLoop):
        marked = Module(
            lambda m, x, out=out: poptorch.set_overlap_for_output(poptorch.set_overlap_for_input(x, into) + 1, out)
        )
        options = sharded(quiet())
        options.TensorLocations.numIOTiles(32)
        program = program_of_module(options, marked, torch.empty(2, 8))
        assert (program.overlaps_input, program.overlaps_output) == (into is not none, out is not none)


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


# The smallest system of each version of the chip.
SYSTEMS = {1: "DSS8440", 2: "M2000", 21: "C600-server"}
MACHINE, VERSION, AS_HARDWARE = "IPU_MODEL_MACHINE", "POPTORCH_IPU_MODEL_VERSION", "IPU_MODEL_AS_HARDWARE"


@pytest.fixture(autouse=True)
def _no_choice_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (MACHINE, VERSION, AS_HARDWARE):
        monkeypatch.delenv(name, raising=False)


def program(replicas: int = 1, version: int | None = None, machine: Any = None) -> Program:
    """Return a program of `replicas` IPUs, for an offline target of this version if there is one."""
    options = quiet() if version is None else quiet().useOfflineIpuTarget(version)
    return inferred(options.replicationFactor(replicas), ipus=1, machine=machine)


# What the environment and the program ask for, and the system that is modelled.
CHOICES: list[tuple[dict[str, str], dict[str, Any], str]] = [
    *(({}, {"replicas": n}, system) for n, system in ((1, "M2000"), (4, "M2000"), (5, "POD16"), (256, "POD256"))),
    # An offline target names the chip; so does the variable of PopTorch's simulator, unless a target is named.
    *(({}, {"version": version}, system) for version, system in SYSTEMS.items()),
    *(({VERSION: f"ipu{version}"}, {}, system) for version, system in SYSTEMS.items()),
    ({VERSION: "ipu1"}, {"version": 2}, "M2000"),
    ({MACHINE: "POD16"}, {}, "POD16"),
    ({MACHINE: "pod-16"}, {}, "POD16"),
    ({MACHINE: "Bow-POD16"}, {}, "Bow-POD16"),
    # A chip stands for its smallest system with enough IPUs.
    ({MACHINE: "Bow"}, {}, "Bow-2000"),
    ({MACHINE: "Bow"}, {"replicas": 9}, "Bow-POD16"),
    ({MACHINE: "GC-200"}, {"replicas": 9}, "POD16"),
    # An offline target of another chip wins; Bow IPUs are version 2.
    ({MACHINE: "POD64"}, {"version": 21}, "C600-server"),
    ({MACHINE: "POD64"}, {"version": 2}, "POD64"),
    ({MACHINE: "Bow-POD16"}, {"version": 2}, "Bow-POD16"),
    # An argument wins over everything, and may be a system.
    ({MACHINE: "POD16", VERSION: "ipu1"}, {"version": 21, "machine": "POD64"}, "POD64"),
    ({MACHINE: "POD16", VERSION: "ipu1"}, {"machine": system_named("POD128")}, "POD128"),
]


@pytest.mark.parametrize(("environment", "asked", "system"), CHOICES)
def test_the_machine_of_a_program(environment: dict[str, str], asked: dict[str, Any], system: str, monkeypatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    modelled = program(**asked)
    assert modelled.system.name == system
    assert modelled.settings.device.chip == modelled.system.chip


NO_TEXT = "named by a text such as 'POD16' or 'Bow', or it is"


@pytest.mark.parametrize(
    ("environment", "asked", "message"),
    [
        ("", {"replicas": 257}, r"No system has 257 IPUs.*POD256"),
        ("Bow-2000", {"replicas": 6}, f"needs 6 IPUs, but Bow-2000, which .*{MACHINE}.* has 4.*Bow-POD16"),
        ("POD7", {}, r"no machine 'POD7'.*POD16"),
        ("", {"replicas": 5, "machine": "M2000"}, "needs 5 IPUs, but M2000, which the argument machine names.*POD16"),
        ("", {"version": 3}, r"no IPU version 3 .*1 \(GC2\), 2 \(GC200\), 21 \(C600\)"),
        *(("", {"machine": wanted}, NO_TEXT) for wanted in (16, b"POD16", ["POD16"], system_named("Bow").chip)),
    ],
)
def test_what_cannot_be_is_refused_with_the_nearest_that_fits(environment, asked, message, monkeypatch) -> None:
    monkeypatch.setenv(MACHINE, environment)
    with pytest.raises(poptorch.Error, match=message):
        program(**asked)


def test_rounding_up_occupies_idle_ipus() -> None:
    rounded = inferred(quiet().autoRoundNumIPUs(True).deviceIterations(5), ipus=5)
    assert (rounded.reserved_ipus, rounded.ipus_per_replica) == (8, 5)
    options = quiet().autoRoundNumIPUs(True).replicationFactor(3)
    options.Distributed.configureProcessId(0, 5)
    rounded = inferred(options, ipus=1)
    assert (rounded.reserved_ipus, rounded.system.name) == (20, "POD64")
    assert program(replicas=3).reserved_ipus is None  # without it, used ones count


class TestAsHardware:
    """`IPU_MODEL_AS_HARDWARE=1`: queries describe the modelled system, and a line on stderr says that it is a model."""

    @pytest.fixture
    def as_if(self, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
        poptorch_core._print_notice.cache_clear()
        monkeypatch.setenv(AS_HARDWARE, "1")
        return monkeypatch

    # Execution reference: always False when a simulator's variable is active.
    @pytest.mark.parametrize("name", [AS_HARDWARE, "POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL"])
    def test_by_default_there_is_no_hardware(self, name: str, as_if: pytest.MonkeyPatch) -> None:
        as_if.setenv(name, "0" if name == AS_HARDWARE else "1")
        assert poptorch.ipuHardwareIsAvailable() is poptorch.ipuHardwareIsAvailable(num_ipus=4) is False
        with pytest.raises(AssertionError, match="No IPU hardware available"):
            poptorch.ipuHardwareVersion()

    def test_there_are_as_many_ipus_as_in_the_modelled_system(self, as_if: pytest.MonkeyPatch) -> None:
        """Without a machine, the largest system of GC200 chips. A Bow IPU is a Mk2 IPU (options reference, 3.5)."""
        for machine, ipus, version in (("", 256, 2), ("POD16", 16, 2), ("Bow-POD64", 64, 2), ("C600", 8, 21)):
            as_if.setenv(MACHINE, machine)
            assert [poptorch.ipuHardwareIsAvailable(number) for number in (1, ipus, ipus + 1)] == [True, True, False]
            assert poptorch.ipuHardwareVersion() == version
        as_if.setenv(MACHINE, "POD3")
        with pytest.raises(poptorch.Error, match="POD3"):
            poptorch.ipuHardwareIsAvailable()

    def test_one_line_on_stderr_says_that_this_is_the_ipu_model(self, as_if: pytest.MonkeyPatch) -> None:
        code = "import poptorch; print(*[poptorch.ipuHardwareIsAvailable() for _ in range(3)])"
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        assert done.stdout == "True True True\n"
        assert done.stderr.count("\n") == 1
        assert "this is the IPU Model" in done.stderr
