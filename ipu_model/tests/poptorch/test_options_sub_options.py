"""The setters of the sub-options (options reference, sections 4 to 9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from poptorch.enums import MeanReductionStrategy, ReductionType
from poptorch.options import Options, TensorLocationSettings, _DistributedOptions


def test_sub_option_setters_return_the_sub_option() -> None:
    options = Options()
    assert options.Training.gradientAccumulation(4) is options.Training
    assert options.Training.setAutomaticLossScaling(True) is options.Training
    assert options.Precision.setPartialsType(torch.half) is options.Precision
    assert options.TensorLocations.numIOTiles(32) is options.TensorLocations
    assert options.Distributed.disable() is options.Distributed
    assert options.Jit.traceModel(False) is options.Jit
    assert options._Popart.set("x", 1) is options._Popart


# Training


def test_training_defaults() -> None:
    training = Options().Training
    assert training.gradient_accumulation == 1
    assert training.accumulation_and_replication_reduction_type is ReductionType.Mean
    assert training.meanAccumulationAndReplicationReductionStrategy is MeanReductionStrategy.Post


def test_reductions_are_stored_as_members() -> None:
    training = Options().Training
    training.accumulationAndReplicationReductionType(ReductionType.Sum)
    training.setMeanAccumulationAndReplicationReductionStrategy(MeanReductionStrategy.Running)
    assert training.accumulation_and_replication_reduction_type is ReductionType.Sum
    assert training.meanAccumulationAndReplicationReductionStrategy is MeanReductionStrategy.Running


@pytest.mark.parametrize("reduction", [ReductionType.NoReduction, 0, 1, "Mean", None])
def test_other_reductions_name_the_two_that_work(reduction: Any) -> None:
    with pytest.raises(ValueError, match=r"ReductionType\.Mean or poptorch\.ReductionType\.Sum"):
        Options().Training.accumulationAndReplicationReductionType(reduction)


def test_the_mean_reduction_strategy_takes_no_int() -> None:
    with pytest.raises(AssertionError, match="Unexpected type <class 'int'>"):
        Options().Training.setMeanAccumulationAndReplicationReductionStrategy(1)  # type: ignore[arg-type]  # wrong on purpose


def test_partials_and_dithering_overwrite_each_other() -> None:
    options = Options()
    options.Precision.setPartialsType(torch.half)
    options.Training.setConvolutionDithering(True)
    assert options._Popart.options["convolutionOptions"] == {"enableConvDithering": True}
    options.Precision.setPartialsType(torch.float)
    assert options._Popart.options["convolutionOptions"] == {"partialsType": "float"}
    assert options._Popart.options["partialsTypeMatMuls"] == "float"


def test_automatic_loss_scaling_is_a_backend_option() -> None:
    options = Options()
    options.Training.setAutomaticLossScaling(True)
    assert options._Popart.options["automaticLossScalingSettings.enabled"] is True


# Precision


def test_stochastic_rounding_and_exceptions_are_backend_options() -> None:
    options = Options()
    options.Precision.enableStochasticRounding(True).enableFloatingPointExceptions(True)
    assert options._Popart.options["enableStochasticRounding"] is True
    assert options._Popart.options["enableFloatingPointChecks"] is True


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32, "half", float, []])
def test_partials_are_float_or_half(dtype: Any) -> None:
    with pytest.raises(ValueError, match=r"torch\.float32 or torch\.float16"):
        Options().Precision.setPartialsType(dtype)


def test_floating_point_exceptions_take_a_bool() -> None:
    with pytest.raises(AssertionError, match="takes a bool"):
        Options().Precision.enableFloatingPointExceptions(1)  # type: ignore[arg-type]  # the mistake under test


def test_running_statistics_take_a_bool() -> None:
    with pytest.raises(ValueError, match="takes a bool"):
        Options().Precision.runningStatisticsAlwaysFloat(1)  # type: ignore[arg-type]  # the mistake under test


@pytest.mark.parametrize(
    "call",
    [
        lambda o: o.Precision.halfFloatCasting("anything"),
        lambda o: o.Precision.runningStatisticsAlwaysFloat(True),
        lambda o: o.Jit.traceModel(False),
    ],
)
def test_deprecated_options_warn_every_time_and_change_nothing(
    call: Callable[[Options], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    options = Options()
    call(options)
    call(options)
    assert capsys.readouterr().err.count("[warning] [Deprecated]") == 2
    assert repr(options) == repr(Options())


def test_tracing_with_jit_is_gone(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="no longer supported"):
        Options().Jit.traceModel(True)
    assert "[Deprecated]" in capsys.readouterr().err


# TensorLocations


@pytest.mark.parametrize("category", ["activation", "weight", "optimizer", "accumulator"])
def test_a_location_is_copied_when_it_is_set(category: str) -> None:
    settings = TensorLocationSettings().useOnChipStorage(False)
    options = Options()
    assert not options.TensorLocations.exists(f"location_{category}")
    getattr(options.TensorLocations, f"set{category.capitalize()}Location")(settings)
    settings.useOnChipStorage(True).useReplicatedTensorSharding()
    assert options.TensorLocations(f"location_{category}") == {"onChip": 0}


def test_a_location_must_be_settings() -> None:
    with pytest.raises(AssertionError, match="TensorLocationSettings"):
        Options().TensorLocations.setOptimizerLocation({"onChip": 0})  # type: ignore[arg-type]  # wrong on purpose


def test_location_settings_chain_and_store_their_keys() -> None:
    settings = (
        TensorLocationSettings()
        .useOnChipStorage()
        .useReplicatedTensorSharding(False)
        .useIOTilesToLoad()
        .useIOTilesToStore(False)
        .minElementsForOffChip(4)
        .minElementsForReplicatedTensorSharding(16)
    )
    stored = settings.toDict()
    assert {type(value) for value in stored.values()} == {int}
    assert stored == {
        "onChip": 1,
        "useReplicatedTensorSharding": 0,
        "useIOTilesToLoad": 1,
        "useIOTilesToStore": 0,
        "minElementsForOffChip": 4,
        "minElementsForReplicatedTensorSharding": 16,
    }
    assert TensorLocationSettings().toDict() == {}


def test_on_chip_storage_can_be_left_to_the_backend_again() -> None:
    assert TensorLocationSettings().useOnChipStorage(True).useOnChipStorage(None).toDict() == {}


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.useOnChipStorage(1),
        lambda s: s.useReplicatedTensorSharding(1),
        lambda s: s.useIOTilesToLoad("yes"),
        lambda s: s.useIOTilesToStore(None),
        lambda s: s.minElementsForOffChip(2.0),
        lambda s: s.minElementsForReplicatedTensorSharding("8"),
    ],
)
def test_location_settings_check_types(call: Callable[[TensorLocationSettings], Any]) -> None:
    with pytest.raises(AssertionError):
        call(TensorLocationSettings())


@pytest.mark.parametrize("tiles", [32, 34, 192])
def test_io_tiles_are_stored_beside_a_method_of_that_name(tiles: int) -> None:
    locations = Options().TensorLocations.numIOTiles(tiles)
    assert callable(locations.numIOTiles)
    assert locations.toDict() == {"numIOTiles": tiles}
    assert f"numIOTiles={tiles}" in repr(locations)


@pytest.mark.parametrize("tiles", [0, 30, 33, 194, -32])
def test_io_tiles_are_even_and_within_bounds(tiles: int) -> None:
    with pytest.raises(AssertionError, match="even number between 32 and 192"):
        Options().TensorLocations.numIOTiles(tiles)


def test_io_tiles_are_an_int() -> None:
    with pytest.raises(AssertionError):
        Options().TensorLocations.numIOTiles(32.0)  # type: ignore[arg-type]  # the mistake under test


# Distributed


def test_distributed_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)
    monkeypatch.delenv("OMPI_COMM_WORLD_RANK", raising=False)
    distributed = Options().Distributed
    assert (distributed.processId, distributed.numProcesses) == (0, 1)
    assert distributed.toDict() == {
        "num_distributed_processes": 1,
        "distributed_process_id": 0,
        "ipuof_configs": {},
    }


def test_distributed_reads_open_mpi_at_construction_and_can_be_disabled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "8")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    distributed = Options().Distributed
    assert (distributed.processId, distributed.numProcesses) == (3, 8)
    distributed.disable()
    assert (distributed.processId, distributed.numProcesses) == (0, 1)


def test_distributed_reads_other_variables_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SIZE", "4")
    monkeypatch.delenv("MY_RANK", raising=False)
    distributed = Options().Distributed.setEnvVarNames("MY_SIZE", "MY_RANK")
    assert (distributed.processId, distributed.numProcesses) == (0, 4)
    monkeypatch.setenv("MY_RANK", "second")
    with pytest.raises(ValueError, match="second"):
        distributed.setEnvVarNames("MY_SIZE", "MY_RANK")


def test_distributed_ids_are_type_checked_but_not_related() -> None:
    distributed = Options().Distributed.configureProcessId(5, 2)
    assert (distributed.distributed_process_id, distributed.num_distributed_processes) == (5, 2)
    with pytest.raises(AssertionError, match="Unexpected type <class 'str'>"):
        distributed.configureProcessId("5", 2)  # type: ignore[arg-type]  # the mistake under test


def test_distributed_ids_are_read_only_properties() -> None:
    distributed = _DistributedOptions()
    with pytest.raises(AttributeError):
        distributed.processId = 3  # type: ignore[misc]  # the mistake under test


# _Popart


def test_backend_options_are_a_raw_dict_without_checks() -> None:
    popart = Options()._Popart
    assert popart.options == {"instrumentWithHardwareCycleCounter": False, "rearrangeAnchorsOnHost": False}
    tensor = torch.ones(1)
    popart.set("no such key", tensor)
    assert popart.options["no such key"] is tensor


def test_patterns_and_engine_options() -> None:
    options = Options()
    options._Popart.setPatterns({"PadSum": False}, 1).setEngineOptions({"opt.x": "1"})
    assert options._Popart.options["patterns"] == {"PadSum": False}
    assert options._Popart.options["patterns_level"] == 1
    assert options._Popart.options["engineOptions"] == {"opt.x": "1"}
    assert Options()._Popart.setPatterns({}).options["patterns_level"] == 2


@pytest.mark.parametrize(
    ("patterns", "level"), [(["PadSum"], 2), ({"PadSum": True}, "2"), ({1: True}, 2), ({"a": 1}, 2)]
)
def test_patterns_check_types(patterns: Any, level: Any) -> None:
    with pytest.raises(AssertionError):
        Options()._Popart.setPatterns(patterns, level)
