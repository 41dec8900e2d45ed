"""Checks of flattened options at compile time (options reference, sections 9 and 10)."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ipu_model.errors import Error, RecoverableError, UnrecoverableError
from poptorch import enums, poptorch_core
from poptorch._impl import createPoptorchError
from poptorch.options import Options, TensorLocationSettings
from poptorch.options.backend import key_tables, validate_options


class Recomputation(IntEnum):
    """Stands for the enums of the `popart` module that programs import."""

    Pipeline = 3


ACCEPTED: list[tuple[str, object]] = [
    ("autoRecomputation", 3),
    ("autoRecomputation", Recomputation.Pipeline),
    ("disableGradAccumulationTensorStreams", True),
    ("outlineThreshold", 10.0),
    ("saveInitializersToFile", "w.onnx"),
    ("accumulateOuterFragmentSettings.excludedVirtualGraphs", ["0", "1"]),
    ("hardwareInstrumentations", {0, 1}),
    ("customCodelets", ("a.cpp",)),
    ("engineOptions", {"target.syncReplicasIndependently": "true"}),
    ("convolutionOptions", {"enableConvDithering": True}),
    ("swapLimitScheduler", 2**64 - 1),
    ("defaultPrefetchBufferingDepth", 3),
]


@pytest.mark.parametrize(("key", "value"), ACCEPTED)
def test_known_keys_with_values_of_their_type_pass(key: str, value: object) -> None:
    validate_options({key: value})


REFUSED: list[tuple[str, Any, str]] = [
    ("noSuch", True, "Unknown bool option noSuch"),
    ("noSuch", 1.0, "Unknown floating point option noSuch"),
    ("noSuch", 1, "Unknown uint64 option noSuch"),
    ("noSuch", Recomputation.Pipeline, "Unknown uint64 option noSuch"),
    ("noSuch", "x", "Unknown string option noSuch"),
    ("noSuch", ["x"], "Unknown set / vector option noSuch"),
    ("noSuch", {"x"}, "Unknown set / vector option noSuch"),
    ("noSuch", ("x",), "Unknown set / vector option noSuch"),
    ("noSuch", {"x": "y"}, "Unknown map option noSuch"),
    ("noSuch", None, "Unknown value type NoneType for option noSuch"),
    ("noSuch", torch.ones(1), "Unknown value type Tensor for option noSuch"),
    ("outlineThreshold", 10, "Unknown uint64 option outlineThreshold.*takes a float"),
    ("autoRecomputation", True, "Unknown bool option autoRecomputation.*takes an int"),
    ("autoRecompute", 3, "Did you mean autoRecomputation"),
    ("autoRecomputation", 5, r"out of range.*4 \(RecomputeAll\)"),
    ("virtualGraphMode", 4, "out of range"),
    ("subgraphCopyingStrategy", 2, "out of range"),
    ("patterns_level", 4, "out of range"),
    ("hardwareInstrumentations", [2], "out of range"),
    ("swapLimitScheduler", -1, "out of range"),
    ("swapLimitScheduler", 2**64, "out of range"),
    ("customCodelets", [1.0], "Unknown value type float in option customCodelets"),
    ("engineOptions", {"a": 1.0}, "Unknown value type float in option engineOptions"),
]


@pytest.mark.parametrize(("key", "value", "fragment"), REFUSED)
def test_unknown_keys_wrong_types_and_ranges_are_poptorch_errors(key: str, value: Any, fragment: str) -> None:
    with pytest.raises(Error, match=fragment):
        poptorch_core._validateOptions({key: value})


def test_nothing_is_checked_when_it_is_set() -> None:
    options = Options().outputMode(enums.OutputMode.All)
    options._Popart.set("noSuch", 1)
    with pytest.raises(Error, match="Unknown uint64 option noSuch"):
        poptorch_core._validateOptions(options.toDict())


def test_patterns_need_their_level() -> None:
    options = Options().outputMode(enums.OutputMode.All)
    options._Popart.set("patterns", {"PadSum": False})
    with pytest.raises(Error, match="patterns_level"):
        validate_options(options.toDict())
    options._Popart.setPatterns({"PadSum": False}, 3)
    validate_options(options.toDict())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (({"PadSum": 1},), "a bool; got"),
        (({3: True},), "names must be strings"),
        ((["PadSum"],), "must be a dict"),
        (({"PadSum": True}, "all"), "level must be an int"),
    ],
)
def test_patterns_of_other_types_are_refused(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        Options()._Popart.setPatterns(*arguments)


def test_the_log_directory_belongs_to_options(capsys: pytest.CaptureFixture[str]) -> None:
    validate_options({"logDir": "x"})
    assert "poptorch.Options.logDir" in capsys.readouterr().err


def test_everything_that_the_options_store_is_accepted() -> None:
    options = Options().outputMode(enums.OutputMode.Sum).useIpuModel(True).useIpuId(1).modelName("m").randomSeed(2)
    options.useOfflineIpuTarget(21).setAvailableMemoryProportion({"IPU0": 0.5}).enableSyntheticData(True)
    options.enableExecutableCaching("c").enableProfiling().enableStableNorm(True).updatableNamedBuffers(["b"])
    options.anchorTensor("a", "b")
    options.Training.setAutomaticLossScaling(True).setConvolutionDithering(True)
    options.Precision.setPartialsType(torch.half).enableStochasticRounding(True).enableFloatingPointExceptions(True)
    settings = TensorLocationSettings().useOnChipStorage(False).useReplicatedTensorSharding().minElementsForOffChip(2)
    options.TensorLocations.setOptimizerLocation(settings).setWeightLocation(settings).numIOTiles(64)
    options.TensorLocations.setActivationLocation(settings).setAccumulatorLocation(settings)
    options._Popart.setPatterns({"PadSum": True}).setEngineOptions({"a": "b"})
    validate_options(options.toDict())


def test_the_deprecated_mean_reduction_strategy_fails_at_compile_time() -> None:
    options = Options().outputMode(enums.OutputMode.All)
    options.Training.setMeanAccumulationAndReplicationReductionStrategy(enums.MeanReductionStrategy.PostAndLoss)
    with pytest.raises(Error, match="out of range"):
        validate_options(options.toDict())


def test_each_key_is_in_one_table_only() -> None:
    tables = list(key_tables().keys.values())
    assert len(frozenset().union(*tables)) == sum(map(len, tables))
    assert set(key_tables().members) <= key_tables().keys["uint64"] | key_tables().keys["container"]


SAMPLES: dict[str, object] = {
    "bool": True,
    "uint64": 1,
    "float": 0.5,
    "string": "text",
    "container": ["text"],
    "map": {"key": "text"},
}


@given(st.sampled_from(sorted(SAMPLES)), st.sampled_from(sorted(SAMPLES)), st.data())
def test_the_type_decides_the_table(of_key: str, of_value: str, data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(key_tables().keys[of_key] - {"patterns", "logDir"})))
    if of_key == of_value:
        validate_options({key: SAMPLES[of_value]})
    else:
        with pytest.raises(Error, match=r"Unknown .* option"):
            validate_options({key: SAMPLES[of_value]})


# The native module's names (section 12.1).


def test_the_native_module_has_the_error_classes() -> None:
    assert poptorch_core.Error is Error
    assert poptorch_core.RecoverableError is RecoverableError
    assert poptorch_core.UnrecoverableError is UnrecoverableError


def test_errors_of_python_checks_have_a_type_and_no_location() -> None:
    error = createPoptorchError("what is wrong")
    assert (error.message, error.type, error.location) == ("what is wrong", "poptorch_py_error", "")
    assert str(error) == "'poptorch_py_error': what is wrong"


def test_no_model_is_being_traced_here() -> None:
    assert poptorch_core.isCompilingWithDispatcher() is False


# Enums (section 10).

INT_ENUMS: dict[str, dict[str, int]] = {
    "OutputMode": {"Final": 0, "EveryN": 1, "All": 2, "Sum": 3, "Default": 4},
    "DataLoaderMode": {"Sync": 0, "Async": 1, "AsyncRebatched": 2},
    "AutoStage": {"SameAsIpu": 0, "AutoIncrement": 1},
    "ReductionType": {"Sum": 0, "Mean": 1, "NoReduction": 2},
    "ConnectionType": {"Always": 0, "OnDemand": 1, "Never": 2},
    "MeanReductionStrategy": {"Running": 0, "Post": 1, "PostAndLoss": 2},
    "SharingStrategy": {"SharedMemory": 0, "FileSystem": 1, "Fork": 2, "ForkServer": 3},
    "Liveness": {
        "AlwaysLive": 0,
        "OffChipAfterFwd": 1,
        "OffChipAfterFwdNoOverlap": 2,
        "OffChipAfterEachPhase": 3,
    },
    "SyncPattern": {"Full": 0, "SinglePipeline": 1, "ReplicaAndLadder": 2},
    "MultiConvPlanType": {"Parallel": 0, "Serial": 1},
    "CommGroupType": {"All": 0, "Consecutive": 1, "Orthogonal": 2, "NoGrouping": 3},
    "VariableRetrievalMode": {"OnePerGroup": 0, "AllReplicas": 2},
    "HalfFloatCastingBehavior": {"FloatDowncastToHalf": 0, "HalfUpcastToFloat": 1, "Default": 2},
}
TEXT_ENUMS: dict[str, dict[str, str]] = {
    "MatMulSerializationMode": {
        "InputChannels": "input_channels",
        "ReducingDim": "reducing_dim",
        "OutputChannels": "output_channels",
        "Disabled": "none",
    },
    "OverlapMode": {
        "NoOverlap": "no_overlap",
        "OverlapAccumulationLoop": "overlap_accumulation_loop",
        "OverlapDeviceIterationLoop": "overlap_device_iteration_loop",
    },
}


@pytest.mark.parametrize(("name", "members"), [*INT_ENUMS.items(), *TEXT_ENUMS.items()])
def test_enum_members_and_values(name: str, members: dict[str, object]) -> None:
    enum_class = getattr(enums, name)
    assert {member.name: member.value for member in enum_class} == members
    assert issubclass(enum_class, IntEnum) == (name in INT_ENUMS)
