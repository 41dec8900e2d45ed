"""Freezing, cloning, printing and pickling of options (options reference, sections 1.3 and 1.4)."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from poptorch.enums import (
    AutoStage,
    CommGroupType,
    ConnectionType,
    MeanReductionStrategy,
    OutputMode,
    ReductionType,
    SyncPattern,
)
from poptorch.options import (
    Options,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
    TensorLocationSettings,
)

Setting = Callable[[Options], Any]

EVERY_SETTER: dict[str, Setting] = {
    "attribute": lambda o: setattr(o, "replication_factor", 2),
    "set": lambda o: o.set(device_iterations=2),
    "createOrSet": lambda o: o.createOrSet(new=1),
    "deleteIfExists": lambda o: o.deleteIfExists("model_name"),
    "deviceIterations": lambda o: o.deviceIterations(2),
    "replicationFactor": lambda o: o.replicationFactor(2),
    "inputReplicaGrouping": lambda o: o.inputReplicaGrouping(1, CommGroupType.Consecutive),
    "outputMode": lambda o: o.outputMode(OutputMode.All),
    "setExecutionStrategy": lambda o: o.setExecutionStrategy(ShardedExecution()),
    "randomSeed": lambda o: o.randomSeed(1),
    "enableExecutableCaching": lambda o: o.enableExecutableCaching("cache"),
    "autoRoundNumIPUs": lambda o: o.autoRoundNumIPUs(),
    "setAvailableMemoryProportion": lambda o: o.setAvailableMemoryProportion({"IPU0": 0.5}),
    "enableSyntheticData": lambda o: o.enableSyntheticData(True),
    "useIpuModel": lambda o: o.useIpuModel(True),
    "useOfflineIpuTarget": lambda o: o.useOfflineIpuTarget(),
    "connectionType": lambda o: o.connectionType(ConnectionType.Never),
    "enableStableNorm": lambda o: o.enableStableNorm(True),
    "showCompilationProgressBar": lambda o: o.showCompilationProgressBar(False),
    "relaxOptimizerAttributesChecks": lambda o: o.relaxOptimizerAttributesChecks(),
    "modelName": lambda o: o.modelName("mine"),
    "logCycleCount": lambda o: o.logCycleCount(True),
    "enableProfiling": lambda o: o.enableProfiling(),
    "broadcastBuffers": lambda o: o.broadcastBuffers(False),
    "updatableNamedBuffers": lambda o: o.updatableNamedBuffers(["b"]),
    "useIpuId": lambda o: o.useIpuId(1),
    "syncPattern": lambda o: o.syncPattern(SyncPattern.Full),
    "logDir": lambda o: o.logDir("logs"),
    "maxRepeatLogs": lambda o: o.maxRepeatLogs(1),
    "sourceLocationExcludes": lambda o: o.sourceLocationExcludes([]),
    "appendToLocationExcludes": lambda o: o.appendToLocationExcludes("a"),
    "disableModuleNamescope": lambda o: o.disableModuleNamescope(),
    "gradientAccumulation": lambda o: o.Training.gradientAccumulation(2),
    "reductionType": lambda o: o.Training.accumulationAndReplicationReductionType(ReductionType.Sum),
    "meanStrategy": lambda o: o.Training.setMeanAccumulationAndReplicationReductionStrategy(
        MeanReductionStrategy.Running
    ),
    "setAutomaticLossScaling": lambda o: o.Training.setAutomaticLossScaling(True),
    "setConvolutionDithering": lambda o: o.Training.setConvolutionDithering(True),
    "enableStochasticRounding": lambda o: o.Precision.enableStochasticRounding(True),
    "setPartialsType": lambda o: o.Precision.setPartialsType(torch.half),
    "enableFloatingPointExceptions": lambda o: o.Precision.enableFloatingPointExceptions(True),
    "halfFloatCasting": lambda o: o.Precision.halfFloatCasting(1),
    "runningStatisticsAlwaysFloat": lambda o: o.Precision.runningStatisticsAlwaysFloat(True),
    "setOptimizerLocation": lambda o: o.TensorLocations.setOptimizerLocation(TensorLocationSettings()),
    "numIOTiles": lambda o: o.TensorLocations.numIOTiles(32),
    "configureProcessId": lambda o: o.Distributed.configureProcessId(0, 1),
    "setEnvVarNames": lambda o: o.Distributed.setEnvVarNames("A", "B"),
    "disable": lambda o: o.Distributed.disable(),
    "traceModel": lambda o: o.Jit.traceModel(False),
    "_Popart.set": lambda o: o._Popart.set("x", 1),
    "_Popart.setPatterns": lambda o: o._Popart.setPatterns({}),
    "_Popart.setEngineOptions": lambda o: o._Popart.setEngineOptions({}),
}

# Settings that can be combined in any order, for the properties below.
HARMLESS = [
    lambda o: o.anchorTensor("a", "b"),
    *(
        EVERY_SETTER[name]
        for name in (
            "deviceIterations",
            "outputMode",
            "enableSyntheticData",
            "modelName",
            "gradientAccumulation",
            "enableStochasticRounding",
            "setPartialsType",
            "setOptimizerLocation",
            "numIOTiles",
            "_Popart.set",
            "setAvailableMemoryProportion",
        )
    ),
]
settings_lists = st.lists(st.sampled_from(HARMLESS), max_size=6)


def _build(settings: list[Setting]) -> Options:
    options = Options()
    for setting in settings:
        setting(options)
    return options


@pytest.mark.parametrize("name", EVERY_SETTER)
def test_no_setter_changes_frozen_options(name: str) -> None:
    options = Options()
    options._freeze()
    before = repr(options), dict(vars(options))
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        EVERY_SETTER[name](options)
    assert (repr(options), dict(vars(options))) == before


@pytest.mark.parametrize("name", EVERY_SETTER)
def test_every_setter_works_again_after_unfreezing(name: str) -> None:
    options = Options()
    options._freeze()
    options._unfreeze()
    EVERY_SETTER[name](options)


def test_check_is_frozen() -> None:
    options = Options()
    options.checkIsFrozen()
    options._freeze()
    for part in (options, options.Training, options.Precision, options.TensorLocations, options._Popart):
        with pytest.raises(AttributeError, match="Can't modify frozen Options"):
            part.checkIsFrozen()


def test_random_seed_on_frozen_options_seeds_the_host_first() -> None:
    options = Options()
    options._freeze()
    with pytest.raises(AttributeError, match="frozen"):
        options.randomSeed(99)
    drawn = torch.rand(2)
    torch.manual_seed(99)
    assert torch.equal(drawn, torch.rand(2))


@pytest.mark.parametrize("duplicate", [Options.clone, copy.deepcopy])
def test_a_clone_of_frozen_options_can_be_changed_at_every_level(
    duplicate: Callable[[Options], Options],
) -> None:
    original = Options()
    original._freeze()
    cloned = duplicate(original)
    for setting in EVERY_SETTER.values():
        setting(cloned)
    fresh = Options()
    fresh._freeze()
    assert repr(original) == repr(fresh)
    with pytest.raises(AttributeError, match="frozen"):
        original.deviceIterations(2)


@given(settings_lists, settings_lists)
def test_a_clone_prints_the_same_and_is_independent(first: list[Setting], second: list[Setting]) -> None:
    original = _build(first)
    printed = repr(original)
    cloned = original.clone()
    assert repr(cloned) == printed
    for setting in second:
        setting(cloned)
    assert repr(original) == printed
    assert repr(cloned) == repr(_build(first + second))


@given(settings_lists)
def test_the_same_settings_in_the_same_order_print_the_same(settings: list[Setting]) -> None:
    assert repr(_build(settings)) == repr(_build(settings))
    assert str(_build(settings)) == repr(_build(settings))


def test_training_and_precision_of_a_clone_write_to_its_own_backend_options() -> None:
    original = Options()
    cloned = original.clone()
    cloned.Training.setAutomaticLossScaling(True)
    cloned.Precision.enableStochasticRounding(True)
    assert cloned.Training._popart is cloned.Precision._popart is cloned._Popart
    assert cloned._Popart.options["enableStochasticRounding"] is True
    assert original._Popart.options == Options()._Popart.options


def test_the_strategy_of_a_clone_is_its_own() -> None:
    original = Options().setExecutionStrategy(PipelinedExecution(AutoStage.AutoIncrement))
    original._execution_strategy.place("A", None)
    cloned = original.clone()
    assert cloned._execution_strategy.place("B", None).stage == 2
    assert original._execution_strategy.place("C", None).stage == 2
    assert cloned._execution_strategy.place("A", None).stage == 1


def test_a_shallow_copy_shares_the_sub_options_and_stays_frozen() -> None:
    options = Options()
    options._freeze()
    copied = copy.copy(options)
    assert copied.Training is options.Training
    assert copied._Popart is options._Popart
    with pytest.raises(AttributeError, match="frozen"):
        copied.deviceIterations(2)


def test_a_shallow_copy_has_keys_of_its_own() -> None:
    options = Options()
    copy.copy(options).deviceIterations(2)
    assert options.device_iterations == 1


def test_a_subclass_is_cloned_and_printed_as_itself() -> None:
    class MyOptions(Options):
        """A wrapper package's options."""

    options = MyOptions().deviceIterations(3)
    assert type(options.clone()) is MyOptions
    assert repr(options).startswith("MyOptions(replication_factor=1, ")


def test_the_printed_form_of_default_options() -> None:
    # The prefix is the example of section 1.4; the order of the rest is stated there.
    assert repr(Options()).startswith(
        "Options(replication_factor=1, input_group_size=1, input_cgt=<CommGroupType.Consecutive: 1>, "
        "broadcast_buffers=True, device_iterations=1, log_dir='.', max_repeat_logs=4, "
        "auto_round_num_ipus=False, anchored_tensors={}, output_mode=4, output_return_period=1, "
        "connection_type=0, sync_pattern=0, available_memory_proportion={}, Distributed=_DistributedOptions("
    )
    printed = repr(Options())
    names = (
        "Distributed=",
        "Jit=_JitOptions(, ",
        "Precision=_Pre",
        "TensorLocations=",
        "Training=",
        "_Popart=",
    )
    places = [printed.index(name) for name in names]
    assert places == sorted(places)
    assert printed.endswith(
        "_Popart=_PopartOptions(instrumentWithHardwareCycleCounter=False, rearrangeAnchorsOnHost=False))"
    )
    assert " at 0x" not in printed


def test_keys_set_later_are_printed_after_the_first_fourteen() -> None:
    printed = repr(Options().modelName("mine").randomSeed(3))
    assert "available_memory_proportion={}, model_name='mine', random_seed=3, Distributed=" in printed


def test_sub_options_print_their_private_fields_after_the_settings() -> None:
    options = Options()
    assert repr(options.TensorLocations) == "_TensorLocationOptions(, _is_frozen=False)"
    options._freeze()
    assert repr(options.Distributed) == (
        "_DistributedOptions(num_distributed_processes=1, distributed_process_id=0, ipuof_configs={}, _is_frozen=True)"
    )
    assert repr(options.Precision) == f"_PrecisionOptions(, _is_frozen=True, _popart={options._Popart!r})"


def test_frozen_options_still_take_anchors() -> None:
    options = Options()
    options._freeze()
    options.anchorTensor("short", "long")
    assert options.anchored_tensors["short"][0] == "long"


@pytest.mark.parametrize(
    "strategy",
    [
        PipelinedExecution(),
        PipelinedExecution(AutoStage.AutoIncrement),
        PipelinedExecution("A", Stage("B").ipu(3)),
        ShardedExecution(["A", "B"]),
        SerialPhasedExecution(Phase("A"), [Stage("B")]),
    ],
)
@pytest.mark.parametrize("frozen", [False, True])
def test_pickling_keeps_settings_strategy_and_frozen_state(strategy: Any, frozen: bool) -> None:
    options = Options().deviceIterations(7).setExecutionStrategy(strategy)
    options.Precision.enableStochasticRounding(True)
    if frozen:
        options._freeze()
    loaded = pickle.loads(pickle.dumps(options))
    assert repr(loaded) == repr(options)
    assert loaded._is_frozen is loaded.Training._is_frozen is loaded._Popart._is_frozen is frozen
    assert loaded.Precision._popart is loaded._Popart
    assert loaded._execution_strategy.place("A", 1) == copy.deepcopy(strategy).place("A", 1)


def test_sub_option_objects_can_be_pickled_alone() -> None:
    settings = TensorLocationSettings().useOnChipStorage(False)
    assert pickle.loads(pickle.dumps(settings)).toDict() == {"onChip": 0}
    assert copy.deepcopy(settings).toDict() == {"onChip": 0}
