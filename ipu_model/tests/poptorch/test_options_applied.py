"""Debug lines about options, and settings derived at compile time (options reference, section 12.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from poptorch import _logging
from poptorch.enums import OutputMode
from poptorch.options import (
    Options,
    ParallelPhasedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    log_options,
)
from poptorch.options.handover import TracedProgram, derived_settings, option_lines


@pytest.fixture(autouse=True)
def _debug_level() -> Iterator[None]:
    level = _logging.native_logger.level
    _logging.setLogLevel("DEBUG")
    _logging.repeat_filter.start(4)
    yield
    _logging.setLogLevel("WARN")
    _logging.native_logger.setLevel(level)


@pytest.mark.parametrize(
    ("key", "value", "lines"),
    [
        ("broadcast_buffers", True, ["poptorch.Options set broadcast_buffers to value true"]),
        ("device_iterations", 4, ["poptorch.Options set device_iterations to value 4"]),
        ("output_mode", OutputMode.All, ["poptorch.Options set output_mode to value 2"]),
        ("log_dir", ".", ["poptorch.Options set log_dir to value ."]),
        (
            "dotChecks",
            ["a", "b"],
            ["poptorch.Options added a to dotChecks", "poptorch.Options added b to dotChecks"],
        ),
        ("engineOptions", {"a.b": "c"}, ["poptorch.Options set engineOptions[a.b] to c"]),
        (
            "available_memory_proportion",
            {0: 0.5},
            ["poptorch.Options set available_memory_proportion[0] to 0.5"],
        ),
        (
            "anchored_tensors",
            {"g": ["Gradient___w", False, OutputMode.EveryN, 3]},
            ["anchor ( Gradient___w EVERYN/3 )"],
        ),
        ("anchored_tensors", {"g": ["w", False, OutputMode.Sum, 1]}, ["anchor ( w Sum/1 )"]),
        ("ipuof_configs", {}, []),
    ],
)
def test_lines_of_one_option(key: str, value: Any, lines: list[str]) -> None:
    assert list(option_lines({key: value})) == lines


def test_options_are_logged_at_debug_level_by_the_native_logger(capsys: pytest.CaptureFixture[str]) -> None:
    options = Options().outputMode(OutputMode.All).setExecutionStrategy(ShardedExecution())
    log_options(options)
    lines = capsys.readouterr().err.splitlines()
    assert all("] [poptorch:cpp] [debug] " in line for line in lines)
    assert lines[-1].endswith("poptorch.Options set execution_mode to value 1")


def test_nothing_is_logged_at_the_default_level(capsys: pytest.CaptureFixture[str]) -> None:
    _logging.setLogLevel("WARN")
    log_options(Options().outputMode(OutputMode.All))
    assert capsys.readouterr().err == ""


def test_a_pipeline_over_several_ipus_is_pipelined_and_recomputes(capsys: pytest.CaptureFixture[str]) -> None:
    options = Options()
    options.Training.gradientAccumulation(8)
    settings = derived_settings(options, TracedProgram(ipus=4))
    assert settings["enablePipelining"] is True
    assert settings["autoRecomputation"] == 3
    assert settings["enableGradientAccumulation"] is True
    assert settings["enableReplicatedGraphs"] is False
    assert settings["engineOptions"] == {"debug.retainDebugInformation": "false"}
    assert "[debug] enablePipelining set to value 1" in capsys.readouterr().err


@pytest.mark.parametrize(("options", "ipus"), [(Options(), 1), (Options().setExecutionStrategy(ShardedExecution()), 4)])
def test_one_ipu_or_sharding_means_no_pipelining(options: Options, ipus: int) -> None:
    settings = derived_settings(options, TracedProgram(ipus=ipus))
    assert settings["enablePipelining"] is False
    assert "autoRecomputation" not in settings


def test_the_user_may_force_a_derived_setting(capsys: pytest.CaptureFixture[str]) -> None:
    options = Options()
    options._Popart.set("autoRecomputation", 0)
    options._Popart.set("enablePipelining", True)
    options._Popart.setEngineOptions({"debug.retainDebugInformation": "true", "x": "y"})
    settings = derived_settings(options, TracedProgram(ipus=2))
    assert settings["autoRecomputation"] == 0
    assert settings["engineOptions"] == {"debug.retainDebugInformation": "true", "x": "y"}
    warnings = [line for line in capsys.readouterr().err.splitlines() if "[warning]" in line]
    assert len(warnings) == 2  # enablePipelining agrees with the derived value.
    assert "autoRecomputation forced by the user to 0: the value 3 is ignored" in warnings[0]


def test_several_processes_replicate_globally() -> None:
    options = Options().replicationFactor(2)
    options.Distributed.configureProcessId(3, 4)
    settings = derived_settings(options, TracedProgram(ipus=1))
    assert settings["enableReplicatedGraphs"] is True
    assert settings["enableDistributedReplicatedGraphs"] is True
    assert settings["globalReplicationFactor"] == 2 * 4
    assert settings["globalReplicaOffset"] == 2 * 3


@pytest.mark.parametrize(("strategy", "stages"), [(SerialPhasedExecution, 1), (ParallelPhasedExecution, 2)])
def test_phased_execution_is_not_pipelined(strategy: Any, stages: int) -> None:
    options = Options().setExecutionStrategy(strategy("A"))
    settings = derived_settings(options, TracedProgram(ipus=2))
    assert settings["enablePipelining"] is False
    assert settings["executionPhaseSettings.stages"] == stages
    assert settings["executionPhaseSettings.phases"] == 1


def test_settings_for_overlap_and_clipping() -> None:
    settings = derived_settings(Options(), TracedProgram(ipus=2, gradient_clipping=True, overlapped_io=True))
    assert settings["accumulateOuterFragmentSettings.schedule"] == 0
    assert settings["useHostCopyOps"] is settings["enableExplicitMainLoops"] is True
    assert "useHostCopyOps" not in derived_settings(Options(), TracedProgram(ipus=2))
