"""The setters of `Options` itself (options reference, sections 1.2 and 3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ipu_model.errors import Error
from poptorch.enums import CommGroupType, ConnectionType, OutputMode, SyncPattern
from poptorch.options import Options, PipelinedExecution, ShardedExecution

DEFAULTS = {
    "replication_factor": 1,
    "input_group_size": 1,
    "input_cgt": CommGroupType.Consecutive,
    "broadcast_buffers": True,
    "device_iterations": 1,
    "log_dir": ".",
    "max_repeat_logs": 4,
    "auto_round_num_ipus": False,
    "anchored_tensors": {},
    "output_mode": 4,
    "output_return_period": 1,
    "connection_type": 0,
    "sync_pattern": 0,
    "available_memory_proportion": {},
}


def test_defaults_are_those_of_the_table_in_1_2() -> None:
    options = Options()
    assert {key: options(key) for key in DEFAULTS} == DEFAULTS
    for absent in ("use_model", "ipu_id", "ipu_version", "random_seed", "model_name"):
        assert not options.exists(absent)


SETTERS: list[tuple[Callable[[Options], Any], str, object]] = [
    (lambda o: o.deviceIterations(4), "device_iterations", 4),
    (lambda o: o.replicationFactor(2), "replication_factor", 2),
    (lambda o: o.broadcastBuffers(False), "broadcast_buffers", False),
    (lambda o: o.logDir("logs"), "log_dir", "logs"),
    (lambda o: o.maxRepeatLogs(7), "max_repeat_logs", 7),
    (lambda o: o.maxRepeatLogs(None), "max_repeat_logs", 2**64 - 1),
    (lambda o: o.autoRoundNumIPUs(), "auto_round_num_ipus", True),
    (lambda o: o.outputMode(OutputMode.All), "output_mode", 2),
    (lambda o: o.connectionType(ConnectionType.OnDemand), "connection_type", 1),
    (lambda o: o.syncPattern(SyncPattern.ReplicaAndLadder), "sync_pattern", 2),
    (lambda o: o.useIpuModel(True), "use_model", True),
    (lambda o: o.useIpuId(3), "ipu_id", 3),
    (lambda o: o.randomSeed(42), "random_seed", 42),
    (lambda o: o.modelName("mine"), "model_name", "mine"),
    (lambda o: o.setAvailableMemoryProportion({"IPU1": 0.3}), "available_memory_proportion", {1: 0.3}),
]


@pytest.mark.parametrize(("setter", "key", "value"), SETTERS)
def test_a_setter_stores_its_value_and_returns_the_options(
    setter: Callable[[Options], Any], key: str, value: object
) -> None:
    options = Options()
    assert setter(options) is options
    assert options(key) == value


@pytest.mark.parametrize("setter", [row[0] for row in SETTERS])
def test_enum_values_are_stored_as_plain_ints(setter: Callable[[Options], Any]) -> None:
    options = setter(Options())
    for key in ("output_mode", "connection_type", "sync_pattern"):
        assert type(options(key)) is int


POPART_SETTERS: list[tuple[Callable[[Options], Any], dict[str, object]]] = [
    (lambda o: o.enableExecutableCaching("cache"), {"cachePath": "cache", "enableEngineCaching": True}),
    (lambda o: o.enableExecutableCaching(None), {"enableEngineCaching": False}),
    (lambda o: o.enableSyntheticData(True), {"syntheticDataMode": 2}),
    (lambda o: o.enableSyntheticData(7), {"syntheticDataMode": 2}),
    (lambda o: o.enableSyntheticData(False), {"syntheticDataMode": 0}),
    (lambda o: o.enableStableNorm(True), {"enableStableNorm": True}),
    (lambda o: o.logCycleCount(True), {"instrumentWithHardwareCycleCounter": True}),
    (lambda o: o.updatableNamedBuffers(["running_mean"]), {"updatableNamedBuffers": ["running_mean"]}),
]


@pytest.mark.parametrize(("setter", "stored"), POPART_SETTERS)
def test_some_setters_write_backend_options(setter: Callable[[Options], Any], stored: dict[str, object]) -> None:
    options = Options()
    assert setter(options) is options
    assert options._Popart.options == {**Options()._Popart.options, **stored}


def test_output_mode_every_n_needs_a_positive_period() -> None:
    assert Options().outputMode(OutputMode.EveryN, 3).output_return_period == 3
    for period in (None, 0, -1):
        with pytest.raises(AssertionError, match="must have output_return_period"):
            Options().outputMode(OutputMode.EveryN, period)


def test_a_period_for_another_output_mode_is_kept_without_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert Options().outputMode(OutputMode.All, 3).output_return_period == 3
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("mode", [2, "All", None])
def test_output_mode_takes_only_members(mode: Any) -> None:
    with pytest.raises(AssertionError, match=r"must be a poptorch\.OutputMode"):
        Options().outputMode(mode)


def test_the_default_output_mode_can_be_restored() -> None:
    options = Options()
    assert options.defaultOutputMode()
    assert not options.outputMode(OutputMode.Sum).defaultOutputMode()
    assert options.outputMode(OutputMode.Default).defaultOutputMode()


@pytest.mark.parametrize(
    "call",
    [
        lambda o: o.connectionType(0),
        lambda o: o.syncPattern(0),
        lambda o: o.useIpuId("3"),
        lambda o: o.randomSeed(4.0),
        lambda o: o.setExecutionStrategy("Pipelined"),
        lambda o: o.setExecutionStrategy(PipelinedExecution),
        lambda o: o.autoRoundNumIPUs(1),
        lambda o: o.deviceIterations(2.0),
    ],
)
def test_wrong_types_are_assertion_errors_at_set_time(call: Callable[[Options], Any]) -> None:
    with pytest.raises(AssertionError):
        call(Options())


def test_the_execution_strategy_is_kept_out_of_the_printed_form() -> None:
    strategy = ShardedExecution()
    options = Options().setExecutionStrategy(strategy)
    assert options._execution_strategy is strategy
    assert repr(options) == repr(Options())


def test_random_seed_seeds_the_host_at_once() -> None:
    Options().randomSeed(1234)
    drawn = torch.rand(3)
    torch.manual_seed(1234)
    assert torch.equal(drawn, torch.rand(3))


def test_available_memory_proportion_replaces_the_whole_mapping() -> None:
    options = Options().setAvailableMemoryProportion({"IPU0": 0.5, "IPU1": 0.4})
    options.setAvailableMemoryProportion({"IPU12": 1.5})
    assert options.available_memory_proportion == {12: 1.5}


def test_available_memory_proportion_checks_its_keys() -> None:
    with pytest.raises(AssertionError, match="Invalid key: ipu0"):
        Options().setAvailableMemoryProportion({"ipu0": 0.5})
    with pytest.raises(AssertionError, match="Invalid key: 0"):
        Options().setAvailableMemoryProportion({0: 0.5})  # type: ignore[dict-item]  # the mistake under test
    with pytest.raises(ValueError, match="invalid literal"):
        Options().setAvailableMemoryProportion({"IPUx": 0.5})


@pytest.mark.parametrize("group", [CommGroupType.Consecutive, CommGroupType.Orthogonal])
def test_input_replica_grouping_takes_a_divisor_of_the_replication_factor(group: CommGroupType) -> None:
    options = Options().replicationFactor(6).inputReplicaGrouping(3, group)
    assert (options.input_group_size, options.input_cgt) == (3, group)


def test_no_grouping_becomes_groups_of_one() -> None:
    options = Options().replicationFactor(4).inputReplicaGrouping(3, CommGroupType.NoGrouping)
    assert (options.input_group_size, options.input_cgt) == (1, CommGroupType.Consecutive)


@pytest.mark.parametrize(
    ("size", "group", "fragment"),
    [
        (2, CommGroupType.All, "cannot be All"),
        (8, CommGroupType.Consecutive, "cannot be larger than replication_factor"),
        (3, CommGroupType.Orthogonal, "must be a factor of replication_factor"),
        (0, CommGroupType.Consecutive, "must be a factor of replication_factor"),
    ],
)
def test_bad_input_replica_groupings(size: int, group: CommGroupType, fragment: str) -> None:
    options = Options().replicationFactor(4)
    with pytest.raises(ValueError, match=fragment):
        options.inputReplicaGrouping(size, group)
    assert options.input_group_size == 1


def test_input_replica_grouping_is_not_checked_again() -> None:
    options = Options().replicationFactor(4).inputReplicaGrouping(4, CommGroupType.Consecutive)
    assert options.replicationFactor(1).input_group_size == 4


def test_an_offline_target_never_attaches() -> None:
    options = Options().useOfflineIpuTarget()
    assert (options.connection_type, options.ipu_version) == (ConnectionType.Never, 2)
    assert Options().useOfflineIpuTarget(21).ipu_version == 21


def test_anchors_record_whether_they_follow_the_model() -> None:
    options = Options()
    options.anchorTensor("a", "conv1.weight")
    options.anchorTensor("b", "Gradient___conv1.weight", OutputMode.EveryN, 2)
    options.anchorTensor("c", "loss", OutputMode.All, 5)
    assert options.anchored_tensors == {
        "a": ["conv1.weight", True, OutputMode.Default, 1],
        "b": ["Gradient___conv1.weight", False, OutputMode.EveryN, 2],
        "c": ["loss", False, OutputMode.All, 1],
    }


def test_resolving_the_output_mode_settles_inheriting_anchors() -> None:
    options = Options()
    options.anchorTensor("follows", "w")
    options.anchorTensor("own", "w", OutputMode.Sum)
    options._resolve_output_mode(OutputMode.Final)
    assert options.output_mode == OutputMode.Final
    assert options.anchored_tensors == {
        "follows": ["w", True, OutputMode.Final, 1],
        "own": ["w", False, OutputMode.Sum, 1],
    }


def test_resolving_keeps_a_chosen_mode_and_its_period() -> None:
    options = Options().outputMode(OutputMode.EveryN, 3)
    options.anchorTensor("follows", "w")
    copied = options.clone()
    copied._resolve_output_mode(OutputMode.Final)
    assert copied.output_mode == OutputMode.EveryN
    assert copied.anchored_tensors["follows"] == ["w", True, OutputMode.EveryN, 3]
    assert options.anchored_tensors["follows"] == ["w", True, OutputMode.Default, 1]


def test_host_only_settings() -> None:
    options = Options()
    assert _host_flags(options) == (True, True, False)
    assert options._source_location_excludes == [
        "install/poptorch",
        "site-packages/torch",
        "site-packages/poptorch",
    ]
    mine = ["a"]
    options.sourceLocationExcludes(mine).appendToLocationExcludes("b", "c")
    options.showCompilationProgressBar(False).relaxOptimizerAttributesChecks().disableModuleNamescope()
    assert options._source_location_excludes == ["a", "b", "c"]
    assert mine == ["a"]
    assert _host_flags(options) == (False, False, True)


def _host_flags(options: Options) -> tuple[bool, bool, bool]:
    return (
        options._show_compilation_progress_bar,
        options._module_namescope_enabled,
        options._relax_optimizer_checks,
    )


def test_profiling_is_merged_with_other_engine_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POPLAR_ENGINE_OPTIONS", raising=False)
    options = Options()
    options._Popart.setEngineOptions({"debug.retainDebugInformation": "true", "autoReport.all": "false"})
    options.enableProfiling("reports")
    assert options._Popart.options["engineOptions"] == {
        "debug.retainDebugInformation": "true",
        "debug.allowOutOfMemory": "true",
        "autoReport.directory": "reports",
        "autoReport.all": "true",
    }
    assert Options().enableProfiling()._Popart.options["engineOptions"]["autoReport.directory"] == "."


def test_profiling_warns_about_what_the_environment_overrides(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", '{"autoReport.directory": "elsewhere", "target.x": "1"}')
    Options().enableProfiling("here")
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 1
    assert "autoReport.directory is overridden by environment variable" in warnings[0]


@pytest.mark.parametrize("value", ["{", "[1]"])
def test_profiling_refuses_a_malformed_environment(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", value)
    with pytest.raises(Error, match="POPLAR_ENGINE_OPTIONS"):
        Options().enableProfiling()


def test_to_dict_needs_an_output_mode() -> None:
    with pytest.raises(AssertionError, match="An output mode must be picked"):
        Options().toDict()


def test_to_dict_flattens_all_levels() -> None:
    options = Options().outputMode(OutputMode.All).setExecutionStrategy(ShardedExecution())
    options.Training.gradientAccumulation(3)
    options._Popart.set("outlineThreshold", 10.0)
    flat = options.toDict()
    assert flat["gradient_accumulation"] == 3
    assert flat["outlineThreshold"] == 10.0
    assert flat["num_distributed_processes"] == 1
    assert flat["execution_mode"] == 1
    assert [key for key in flat if key in DEFAULTS] == list(DEFAULTS)


@pytest.mark.parametrize("key", ["replication_factor", "gradient_accumulation", "execution_mode"])
def test_to_dict_refuses_a_backend_key_that_poptorch_emits(key: str) -> None:
    options = Options().outputMode(OutputMode.All)
    options._Popart.set(key, 2)
    with pytest.raises(AssertionError, match=f"keys in common: {key}"):
        options.toDict()
