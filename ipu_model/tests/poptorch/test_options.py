"""Options: what each setter stores and refuses, keys, freezing, copies, printing (options reference, 1 to 9)."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import poptorch
from poptorch import AutoStage, Options, PipelinedExecution, ShardedExecution, Stage, TensorLocationSettings
from poptorch.enums import CommGroupType, ConnectionType, MeanReductionStrategy, OutputMode, ReductionType, SyncPattern
from poptorch.options.backend import validate_options

Call = Callable[[Options], Any]
OFF_CHIP = TensorLocationSettings().useOnChipStorage(False)

# Section 1.2, in the order in which they are printed.
DEFAULTS = {
    "replication_factor": 1, "input_group_size": 1, "input_cgt": CommGroupType.Consecutive, "broadcast_buffers": True,
    "device_iterations": 1, "log_dir": ".", "max_repeat_logs": 4, "auto_round_num_ipus": False, "anchored_tensors": {},
    "output_mode": 4, "output_return_period": 1, "connection_type": 0, "sync_pattern": 0,
    "available_memory_proportion": {}
}  # fmt: skip
# Sections 4 to 9.
SUB_DEFAULTS = {
    "gradient_accumulation": 1, "accumulation_and_replication_reduction_type": ReductionType.Mean,
    "meanAccumulationAndReplicationReductionStrategy": MeanReductionStrategy.Post,
    "num_distributed_processes": 1, "distributed_process_id": 0, "ipuof_configs": {},
    "instrumentWithHardwareCycleCounter": False, "rearrangeAnchorsOnHost": False
}  # fmt: skip
EXCLUDES = ["install/poptorch", "site-packages/torch", "site-packages/poptorch"]
HOST_ONLY = {
    "_show_compilation_progress_bar": True, "_module_namescope_enabled": True, "_relax_optimizer_checks": False,
    "_source_location_excludes": EXCLUDES
}  # fmt: skip
MEAN, MEAN_STRATEGY = (name for name in SUB_DEFAULTS if "ReplicationReduction" in name or "reduction_type" in name)

PROFILING = {"debug.allowOutOfMemory": "true", "autoReport.directory": ".", "autoReport.all": "true"}
RUNNING = MeanReductionStrategy.Running
PARTIALS = {n: {"partialsTypeMatMuls": n, "convolutionOptions": {"partialsType": n}} for n in ("half", "float")}

# A call of each setter, and what it changes; a setter returns the object that it belongs to.
SETTERS: list[tuple[Call, dict[str, object]]] = [
    (lambda o: o.set(device_iterations=2), {"device_iterations": 2}),
    (lambda o: o.createOrSet(new=1), {"new": 1}),
    (lambda o: o.deviceIterations(4), {"device_iterations": 4}),
    (lambda o: o.deviceIterations(0), {"device_iterations": 0}),  # ranges are checked when a model is compiled
    (lambda o: o.replicationFactor(2), {"replication_factor": 2}),
    (lambda o: o.inputReplicaGrouping(1, CommGroupType.Orthogonal), {"input_cgt": CommGroupType.Orthogonal}),
    (lambda o: o.inputReplicaGrouping(3, CommGroupType.NoGrouping), {}),  # groups of one are the default
    (lambda o: o.broadcastBuffers(False), {"broadcast_buffers": False}),
    (lambda o: o.logDir("logs"), {"log_dir": "logs"}),
    (lambda o: o.maxRepeatLogs(7), {"max_repeat_logs": 7}),
    (lambda o: o.maxRepeatLogs(None), {"max_repeat_logs": 2**64 - 1}),
    (lambda o: o.autoRoundNumIPUs(), {"auto_round_num_ipus": True}),
    (lambda o: o.outputMode(OutputMode.All), {"output_mode": 2}),
    (lambda o: o.outputMode(OutputMode.All, 3), {"output_mode": 2, "output_return_period": 3}),
    (lambda o: o.outputMode(OutputMode.EveryN, 3), {"output_mode": 1, "output_return_period": 3}),
    (lambda o: o.connectionType(ConnectionType.OnDemand), {"connection_type": 1}),
    (lambda o: o.syncPattern(SyncPattern.ReplicaAndLadder), {"sync_pattern": 2}),
    (lambda o: o.useIpuModel(True), {"use_model": True}),
    (lambda o: o.useIpuId(3), {"ipu_id": 3}),
    (lambda o: o.useOfflineIpuTarget(), {"connection_type": 2, "ipu_version": 2}),
    (lambda o: o.useOfflineIpuTarget(21), {"connection_type": 2, "ipu_version": 21}),
    (lambda o: o.randomSeed(42), {"random_seed": 42}),
    (lambda o: o.modelName("mine"), {"model_name": "mine"}),
    (lambda o: o.setAvailableMemoryProportion({"IPU12": 1.5}), {"available_memory_proportion": {12: 1.5}}),
    (lambda o: o.enableExecutableCaching("cache"), {"cachePath": "cache", "enableEngineCaching": True}),
    (lambda o: o.enableExecutableCaching(None), {"enableEngineCaching": False}),
    (lambda o: o.enableSyntheticData(7), {"syntheticDataMode": 2}),
    (lambda o: o.enableSyntheticData(False), {"syntheticDataMode": 0}),
    (lambda o: o.enableStableNorm(True), {"enableStableNorm": True}),
    (lambda o: o.logCycleCount(True), {"instrumentWithHardwareCycleCounter": True}),
    (lambda o: o.updatableNamedBuffers(["mean"]), {"updatableNamedBuffers": ["mean"]}),
    (lambda o: o.showCompilationProgressBar(False), {"_show_compilation_progress_bar": False}),
    (lambda o: o.relaxOptimizerAttributesChecks(), {"_relax_optimizer_checks": True}),
    (lambda o: o.disableModuleNamescope(), {"_module_namescope_enabled": False}),
    (lambda o: o.sourceLocationExcludes(["a"]), {"_source_location_excludes": ["a"]}),
    (lambda o: o.appendToLocationExcludes("b", "c"), {"_source_location_excludes": [*EXCLUDES, "b", "c"]}),
    (lambda o: o.setExecutionStrategy(ShardedExecution()), {}),
    (lambda o: o.enableProfiling(), {"engineOptions": PROFILING}),
    (lambda o: o.Training.gradientAccumulation(8), {"gradient_accumulation": 8}),
    (lambda o: o.Training.accumulationAndReplicationReductionType(ReductionType.Sum), {MEAN: ReductionType.Sum}),
    (lambda o: o.Training.setMeanAccumulationAndReplicationReductionStrategy(RUNNING), {MEAN_STRATEGY: RUNNING}),
    (lambda o: o.Training.setAutomaticLossScaling(True), {"automaticLossScalingSettings.enabled": True}),
    (lambda o: o.Training.setConvolutionDithering(True), {"convolutionOptions": {"enableConvDithering": True}}),
    (lambda o: o.Precision.enableStochasticRounding(True), {"enableStochasticRounding": True}),
    (lambda o: o.Precision.setPartialsType(torch.half), PARTIALS["half"]),
    (lambda o: o.Precision.setPartialsType(torch.float), PARTIALS["float"]),
    (lambda o: o.Precision.enableFloatingPointExceptions(True), {"enableFloatingPointChecks": True}),
    (lambda o: o.Precision.halfFloatCasting("anything"), {}),
    (lambda o: o.Precision.runningStatisticsAlwaysFloat(True), {}),
    (lambda o: o.TensorLocations.setActivationLocation(OFF_CHIP), {"location_activation": {"onChip": 0}}),
    (lambda o: o.TensorLocations.setWeightLocation(OFF_CHIP), {"location_weight": {"onChip": 0}}),
    (lambda o: o.TensorLocations.setOptimizerLocation(OFF_CHIP), {"location_optimizer": {"onChip": 0}}),
    (lambda o: o.TensorLocations.setAccumulatorLocation(OFF_CHIP), {"location_accumulator": {"onChip": 0}}),
    *((lambda o, n=n: o.TensorLocations.numIOTiles(n), {"numIOTiles": n}) for n in (32, 34, 192)),
    (lambda o: o.Distributed.configureProcessId(5, 2), {"distributed_process_id": 5, "num_distributed_processes": 2}),
    (lambda o: o.Distributed.setEnvVarNames("A", "B"), {}),
    (lambda o: o.Distributed.disable(), {}),
    (lambda o: o.Jit.traceModel(False), {}),
    (lambda o: o._Popart.set("no such key", 1), {"no such key": 1}),
    (lambda o: o._Popart.setPatterns({"PadSum": False}), {"patterns": {"PadSum": False}, "patterns_level": 2}),
    (lambda o: o._Popart.setPatterns({}, 1), {"patterns": {}, "patterns_level": 1}),
    (lambda o: o._Popart.setEngineOptions({"opt.x": "1"}), {"engineOptions": {"opt.x": "1"}}),
]
CALLS = [call for call, _ in SETTERS]
PARTS = ("Training", "Precision", "TensorLocations", "Distributed", "Jit", "_Popart")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "A", "B", "POPLAR_ENGINE_OPTIONS"):
        monkeypatch.delenv(name, raising=False)


def stored(options: Options) -> dict[str, Any]:
    """Return everything that options hold, from all levels, without handing them over."""
    found = {name: getattr(options, name) for name in HOST_ONLY} | options._Popart.options
    for part in (options, *(getattr(options, name) for name in PARTS[:-1])):
        found |= part._values
    return found


def build(calls: list[Call]) -> Options:
    options = Options()
    for call in calls:
        call(options)
    return options


class TestSetters:
    def test_defaults_are_those_of_the_reference(self) -> None:
        assert stored(Options()) == DEFAULTS | SUB_DEFAULTS | HOST_ONLY

    @pytest.mark.parametrize(("call", "changed"), SETTERS)
    def test_a_setter_stores_its_value_and_returns_its_object(self, call: Call, changed: dict[str, object]) -> None:
        options, before = Options(), stored(Options())
        returned = call(options)
        assert any(returned is part for part in (options, *(getattr(options, name) for name in PARTS)))
        assert stored(options) == before | changed
        assert {type(options(key)) for key in ("output_mode", "connection_type", "sync_pattern")} == {int}

    def test_the_backend_accepts_what_they_store(self) -> None:
        options = build([call for call, changed in SETTERS if not {"new", "no such key"} & set(changed)])
        validate_options(options.outputMode(OutputMode.Sum).toDict())
        deprecated = MeanReductionStrategy.PostAndLoss  # and refused when a model is compiled
        options.Training.setMeanAccumulationAndReplicationReductionStrategy(deprecated)
        with pytest.raises(poptorch.Error, match="out of range"):
            validate_options(options.toDict())

    def test_random_seed_seeds_the_host_at_once_even_if_the_options_are_frozen(self) -> None:
        options = Options()
        for seed in (1234, 99):
            with suppress(AttributeError):
                options.randomSeed(seed)
            drawn = torch.rand(3)
            torch.manual_seed(seed)
            assert torch.equal(drawn, torch.rand(3))
            options._freeze()

    def test_input_replica_grouping_takes_a_divisor_and_is_not_checked_again(self) -> None:
        options = Options().replicationFactor(6).inputReplicaGrouping(3, CommGroupType.Consecutive)
        with pytest.raises(ValueError, match="must be a factor of replication_factor"):
            options.inputReplicaGrouping(4, CommGroupType.Orthogonal)
        assert options.replicationFactor(1).input_group_size == 3

    def test_later_settings_replace_earlier_ones(self, capsys: pytest.CaptureFixture[str]) -> None:
        options = Options().setAvailableMemoryProportion({"IPU0": 0.5, "IPU1": 0.4})
        assert options.setAvailableMemoryProportion({"IPU1": 0.3}).available_memory_proportion == {1: 0.3}
        assert options.defaultOutputMode()
        assert not options.outputMode(OutputMode.Sum).defaultOutputMode()
        assert options.outputMode(OutputMode.Default).defaultOutputMode()
        options.outputMode(OutputMode.All, 3)  # a period for another mode is no warning
        assert capsys.readouterr().err == ""

    def test_anchors_follow_the_model_unless_they_have_a_mode(self) -> None:
        options = Options()
        options._freeze()  # a model has its own copy, so anchors are never refused
        options.anchorTensor("follows", "conv1.weight")
        options.anchorTensor("own", "Gradient___w", OutputMode.EveryN, 2)
        options.anchorTensor("all", "loss", OutputMode.All, 5)
        own = {"own": ["Gradient___w", False, OutputMode.EveryN, 2], "all": ["loss", False, OutputMode.All, 1]}
        assert options.anchored_tensors == {"follows": ["conv1.weight", True, OutputMode.Default, 1], **own}
        for model, mode, period in (
            (options.clone(), OutputMode.Final, 1),
            (options.clone().outputMode(OutputMode.EveryN, 3), OutputMode.EveryN, 3),
        ):
            model._resolve_output_mode(OutputMode.Final)
            assert model.output_mode == mode
            assert model.anchored_tensors == {"follows": ["conv1.weight", True, mode, period], **own}

    def test_profiling_is_merged_with_other_engine_options(self, monkeypatch, capsys) -> None:
        monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", '{"autoReport.directory": "elsewhere", "target.x": "1"}')
        options = Options()
        options._Popart.setEngineOptions({"debug.retainDebugInformation": "true", "autoReport.all": "false"})
        options.enableProfiling("reports")
        assert options._Popart.options["engineOptions"] == {
            "debug.retainDebugInformation": "true", "debug.allowOutOfMemory": "true",
            "autoReport.directory": "reports", "autoReport.all": "true"
        }  # fmt: skip
        (warning,) = capsys.readouterr().err.splitlines()
        assert "autoReport.directory is overridden by environment variable" in warning

    def test_deprecated_options_warn_every_time(self, capsys: pytest.CaptureFixture[str]) -> None:
        options = Options()
        for _ in range(2):
            options.Precision.halfFloatCasting("anything").runningStatisticsAlwaysFloat(True).autocastEnabled(True)
            options.Jit.traceModel(False)
        assert capsys.readouterr().err.count("[warning] [Deprecated]") == 2 * 4

    def test_distributed_reads_its_variables_and_can_be_disabled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "8")
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
        distributed = Options().Distributed
        assert (distributed.processId, distributed.numProcesses) == (3, 8)
        monkeypatch.setenv("A", "4")
        assert distributed.setEnvVarNames("A", "B").toDict()["distributed_process_id"] == 0
        assert (distributed.processId, distributed.numProcesses) == (0, 4)
        monkeypatch.setenv("B", "second")
        with pytest.raises(ValueError, match="second"):
            distributed.setEnvVarNames("A", "B")
        distributed.disable()
        assert (distributed.processId, distributed.numProcesses) == (0, 1)


class TestLocationSettings:
    def test_they_chain_and_store_ints(self) -> None:
        settings = TensorLocationSettings().useOnChipStorage().useReplicatedTensorSharding(False).useIOTilesToLoad()
        settings.useIOTilesToStore(False).minElementsForOffChip(4).minElementsForReplicatedTensorSharding(16)
        assert {type(value) for value in settings.toDict().values()} == {int}
        assert settings.toDict() == {
            "onChip": 1, "useReplicatedTensorSharding": 0, "useIOTilesToLoad": 1, "useIOTilesToStore": 0,
            "minElementsForOffChip": 4, "minElementsForReplicatedTensorSharding": 16
        }  # fmt: skip
        assert TensorLocationSettings().useOnChipStorage(True).useOnChipStorage(None).toDict() == {}

    def test_a_location_is_copied_when_it_is_set(self) -> None:
        settings = TensorLocationSettings().useOnChipStorage(False)
        locations = Options().TensorLocations.setWeightLocation(settings)
        settings.useOnChipStorage(True)
        assert locations("location_weight") == {"onChip": 0}
        assert callable(locations.numIOTiles(32).numIOTiles)  # a stored key and a method of one name

    def test_update_merges_into_a_dict(self) -> None:
        assert OFF_CHIP.update({"other": 1}) == {"other": 1, "onChip": 0}
        OFF_CHIP.toDict()["onChip"] = 5
        assert OFF_CHIP.toDict() == {"onChip": 0}


class TestKeys:
    def test_stored_keys_are_attributes_that_can_be_called_for_assigned_and_deleted(self) -> None:
        options = Options().createOrSet(mine=1)
        options.mine = 2
        options.Training.gradient_accumulation = 8
        assert (options.mine, options("mine"), options.exists("mine"), options._hasattr("mine")) == (2, 2, True, True)
        assert options.Training("gradient_accumulation") == 8
        assert "mine" in dir(options)
        with pytest.raises(AssertionError, match="Unexpected type <class 'str'> for option mine"):
            options.createOrSet(mine="three")
        for _ in range(2):
            options.deleteIfExists("mine")
        assert not options.exists("mine")
        assert options.deviceIterations(True).device_iterations is True  # a bool counts as an int
        assert options == options  # by identity
        assert Options() != Options()

    def test_a_subclass_may_have_private_attributes_if_it_sets_them_first(self) -> None:
        class Own(Options):
            def __init__(self) -> None:
                self._machine = "pod"
                super().__init__()

        options = Own().deviceIterations(3)
        options._machine = "bow"
        assert options.clone()._machine == "bow"
        assert repr(options).startswith("Own(replication_factor=1, ")
        assert "_machine" not in repr(options), "it is no setting"


class TestFreezing:
    @pytest.mark.parametrize("call", [*CALLS, lambda o: setattr(o, "log_dir", "x"), lambda o: o.deleteIfExists("x")])
    def test_no_setter_changes_frozen_options(self, call: Call) -> None:
        options = Options()
        options._freeze()
        before = repr(options), dict(vars(options))
        with pytest.raises(AttributeError, match="Can't modify frozen Options"):
            call(options)
        assert (repr(options), dict(vars(options))) == before
        options._unfreeze()
        call(options)

    def test_every_part_is_frozen(self) -> None:
        options = Options()
        options.checkIsFrozen()
        options._freeze()
        for part in (options, *(getattr(options, name) for name in PARTS)):
            with pytest.raises(AttributeError, match="Can't modify frozen Options"):
                part.checkIsFrozen()


class TestCopies:
    @pytest.mark.parametrize("duplicate", [Options.clone, copy.deepcopy])
    def test_a_clone_of_frozen_options_can_be_changed_at_every_level(self, duplicate: Callable[..., Options]) -> None:
        original = Options()
        original._freeze()
        cloned = duplicate(original)
        for call in CALLS:
            call(cloned)
        assert stored(original) == stored(Options())
        with pytest.raises(AttributeError, match="frozen"):
            original.deviceIterations(2)
        assert cloned.Training._popart is cloned.Precision._popart is cloned._Popart

    @given(*[st.lists(st.sampled_from(CALLS[1:]), max_size=6)] * 2)
    def test_a_clone_prints_the_same_and_is_independent(self, first: list[Call], second: list[Call]) -> None:
        original = build(first)
        printed = repr(original)
        cloned = original.clone()
        assert repr(cloned) == printed == str(build(first))
        for call in second:
            call(cloned)
        assert repr(original) == printed
        assert repr(cloned) == repr(build(first + second))

    def test_the_strategy_of_a_clone_is_its_own(self) -> None:
        original = Options().setExecutionStrategy(PipelinedExecution(AutoStage.AutoIncrement))
        original._execution_strategy.place("A", None)
        cloned = original.clone()
        assert cloned._execution_strategy.place("B", None).stage == 2
        assert original._execution_strategy.place("C", None).stage == 2
        assert cloned._execution_strategy.place("A", None).stage == 1

    def test_a_shallow_copy_has_keys_of_its_own_shares_sub_options_and_stays_frozen(self) -> None:
        options = Options()
        copied = copy.copy(options)
        copied.deviceIterations(2)
        assert options.device_iterations == 1
        assert (copied.Training, copied._Popart) == (options.Training, options._Popart)
        options._freeze()
        with pytest.raises(AttributeError, match="frozen"):
            copy.copy(options).deviceIterations(2)

    def test_pickling_keeps_settings_strategy_and_frozen_state(self) -> None:
        options = Options().deviceIterations(7).setExecutionStrategy(PipelinedExecution("A", Stage("B").ipu(3)))
        options.Precision.enableStochasticRounding(True)
        for frozen in (False, True):
            loaded = pickle.loads(pickle.dumps(options))
            assert repr(loaded) == repr(options)
            assert loaded._is_frozen is loaded.Training._is_frozen is loaded._Popart._is_frozen is frozen
            assert loaded.Precision._popart is loaded._Popart
            assert loaded._execution_strategy.place("B", 1).ipu == 3
            options._freeze()
        for location in (pickle.loads(pickle.dumps(OFF_CHIP)), copy.deepcopy(OFF_CHIP)):
            assert location.toDict() == {"onChip": 0}


# The prefix is the example of section 1.4; the order of the rest is stated there.
PREFIX = (
    "Options(replication_factor=1, input_group_size=1, input_cgt=<CommGroupType.Consecutive: 1>, "
    "broadcast_buffers=True, device_iterations=1, log_dir='.', max_repeat_logs=4, auto_round_num_ipus=False, "
    "anchored_tensors={}, output_mode=4, output_return_period=1, connection_type=0, sync_pattern=0, "
    "available_memory_proportion={}, model_name='mine', random_seed=3, Distributed=_DistributedOptions("
)


class TestText:
    def test_the_printed_form_of_options(self) -> None:
        options = Options().modelName("mine").randomSeed(3).setExecutionStrategy(ShardedExecution())
        printed = repr(options)
        assert printed.startswith(PREFIX)
        names = ("Distributed=", "Jit=_JitOptions(, ", "Precision=_Pre", "TensorLocations=", "Training=", "_Popart=")
        places = [printed.index(name) for name in names]
        assert places == sorted(places)
        popart = "_PopartOptions(instrumentWithHardwareCycleCounter=False, rearrangeAnchorsOnHost=False)"
        assert printed.endswith(f"_Popart={popart})")
        assert (" at 0x" in printed, "Sharded" in printed) == (False, False)
        # Sub-options print their private fields after the settings.
        assert repr(options.TensorLocations) == "_TensorLocationOptions(, _is_frozen=False)"
        options._freeze()
        assert repr(options.Distributed) == (
            "_DistributedOptions(num_distributed_processes=1, distributed_process_id=0, ipuof_configs={}, "
            "_is_frozen=True)"
        )
        assert repr(options.Precision) == f"_PrecisionOptions(, _is_frozen=True, _popart={options._Popart!r})"

    def test_a_dictionary_has_all_levels(self) -> None:
        options = Options().outputMode(OutputMode.All).setExecutionStrategy(ShardedExecution())
        options._Popart.set("outlineThreshold", 10.0)
        flat = options.toDict()
        assert callable(flat.pop("compilation_progress_bar_fn"))
        assert "compilation_progress_bar_fn" not in options.showCompilationProgressBar(False).toDict()
        assert flat == {**DEFAULTS, **SUB_DEFAULTS, "output_mode": 2, "outlineThreshold": 10.0, "execution_mode": 1}

    @pytest.mark.parametrize("key", ["replication_factor", "gradient_accumulation", "execution_mode"])
    def test_a_backend_key_that_poptorch_emits_is_in_no_dictionary(self, key: str) -> None:
        options = Options().outputMode(OutputMode.All)
        options._Popart.set(key, 2)
        with pytest.raises(AssertionError, match=f"keys in common: {key}"):
            options.toDict()
