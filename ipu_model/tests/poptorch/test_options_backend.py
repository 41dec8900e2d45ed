"""Options that reach the backend: checks, derived settings, log lines (options reference 3.2, 9 to 12)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import popart
import poptorch
from ipu_model.errors import Error
from poptorch import _logging, enums
from poptorch.enums import OutputMode
from poptorch.options import Options, ShardedExecution, TensorLocationSettings, log_options
from poptorch.options.backend import EngineOptions, key_tables, read_engine_options, validate_options
from poptorch.options.handover import derived_settings, option_lines

SAMPLES = {"bool": True, "uint64": 1, "float": 0.5, "string": "text", "container": ["text"], "map": {"key": "text"}}


class TestValidation:
    @pytest.mark.parametrize(("key", "value"), [
        ("autoRecomputation", 3), ("autoRecomputation", popart.RecomputationType.Pipeline),
        ("disableGradAccumulationTensorStreams", True), ("outlineThreshold", 10.0),
        ("saveInitializersToFile", "w.onnx"),
        ("accumulateOuterFragmentSettings.excludedVirtualGraphs", ["0", "1"]), ("hardwareInstrumentations", {0, 1}),
        ("customCodelets", ("a.cpp",)), ("engineOptions", {"target.syncReplicasIndependently": "true"}),
        ("convolutionOptions", {"enableConvDithering": True}), ("swapLimitScheduler", 2**64 - 1),
        ("defaultPrefetchBufferingDepth", 3),
    ])  # fmt: skip
    def test_known_keys_with_values_of_their_type_pass(self, key: str, value: object) -> None:
        validate_options({key: value})

    def test_the_log_directory_belongs_to_options(self, capsys: pytest.CaptureFixture[str]) -> None:
        validate_options({"logDir": "x"})
        assert "poptorch.Options.logDir" in capsys.readouterr().err

    def test_everything_that_the_options_store_is_accepted(self) -> None:
        options = Options().outputMode(OutputMode.Sum).useIpuModel(True).useIpuId(1).modelName("m").randomSeed(2)
        options.useOfflineIpuTarget(21).setAvailableMemoryProportion({"IPU0": 0.5}).enableSyntheticData(True)
        options.enableExecutableCaching("c").enableProfiling().enableStableNorm(True).updatableNamedBuffers(["b"])
        options.anchorTensor("a", "b")
        options.Training.setAutomaticLossScaling(True).setConvolutionDithering(True)
        options.Precision.setPartialsType(torch.half).enableStochasticRounding(True).enableFloatingPointExceptions(True)
        place = TensorLocationSettings().useOnChipStorage(False).useReplicatedTensorSharding().minElementsForOffChip(2)
        options.TensorLocations.setOptimizerLocation(place).setWeightLocation(place).numIOTiles(64)
        options.TensorLocations.setActivationLocation(place).setAccumulatorLocation(place)
        options._Popart.setPatterns({"PadSum": True}, 3).setEngineOptions({"a": "b"})
        validate_options(options.toDict())
        strategy = enums.MeanReductionStrategy.PostAndLoss  # deprecated, and refused when a model is compiled
        options.Training.setMeanAccumulationAndReplicationReductionStrategy(strategy)
        with pytest.raises(Error, match="out of range"):
            validate_options(options.toDict())

    @given(st.sampled_from(sorted(SAMPLES)), st.sampled_from(sorted(SAMPLES)), st.data())
    def test_the_type_decides_the_table(self, of_key: str, of_value: str, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(key_tables().keys[of_key] - {"patterns", "logDir"})))
        if of_key == of_value:
            validate_options({key: SAMPLES[of_value]})
        else:
            with pytest.raises(Error, match=r"Unknown .* option"):
                validate_options({key: SAMPLES[of_value]})


VARIABLE = "POPLAR_ENGINE_OPTIONS"
ALL, GRAPH, EXECUTION = (f"autoReport.{key}" for key in ("all", "outputGraphProfile", "outputExecutionProfile"))


class TestEngineOptions:
    @pytest.fixture(autouse=True)
    def no_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(VARIABLE, raising=False)

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({}, EngineOptions(report=False, execution=False, directory=".", allow_out_of_memory=True)),
            ({"debug.retainDebugInformation": "true"}, EngineOptions()),  # has no meaning here
            (
                Options().enableProfiling("folder")._Popart.options["engineOptions"],
                EngineOptions(report=True, execution=True, directory="folder", allow_out_of_memory=True),
            ),
            ({ALL: True}, EngineOptions(report=True, execution=True)),  # JSON's own truth values
            ({ALL: False}, EngineOptions()),
            ({ALL: "true", EXECUTION: "false"}, EngineOptions(report=True, execution=False)),
            ({GRAPH: "true"}, EngineOptions(report=True, execution=False)),
            ({EXECUTION: "true"}, EngineOptions(report=True, execution=True)),
            ({ALL: "true", GRAPH: "false"}, EngineOptions(report=True, execution=True)),
            ({ALL: "true", GRAPH: "false", EXECUTION: "false"}, EngineOptions()),
            # Off, "nothing can be analysed" (guide 6.1); on by default since SDK 2.1.
            ({"debug.allowOutOfMemory": "false"}, EngineOptions(allow_out_of_memory=False)),
        ],
    )
    def test_what_they_ask_for(self, options: dict[str, Any], expected: EngineOptions) -> None:
        assert read_engine_options(options) == expected

    def test_the_environment_asks_in_the_same_words_and_wins(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(VARIABLE, '{"autoReport.all": "true", "autoReport.directory": "there", "x": "3"}')
        there = EngineOptions(report=True, execution=True, directory="there", from_environment=True)
        assert read_engine_options({}) == there
        monkeypatch.setenv(VARIABLE, '{"autoReport.all": "false", "debug.allowOutOfMemory": "false"}')
        asked = Options().enableProfiling("folder")._Popart.options["engineOptions"]
        assert read_engine_options(asked) == EngineOptions(directory="folder", allow_out_of_memory=False)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("{autoReport.all: true}", "not valid JSON"), (" ", "not valid JSON"), ("[" * 100_000, "not valid JSON"),
            ('["autoReport.all"]', "must be a JSON object"), ("null", "must be a JSON object")
        ]
    )  # fmt: skip
    def test_a_variable_that_cannot_be_read(self, text: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(VARIABLE, text)
        for read in (lambda: read_engine_options({}), lambda: Options().enableProfiling()):
            with pytest.raises(Error, match=f"{VARIABLE}.*{words}"):
                read()


# What is set in any case; `changed` of a case is what differs. Section 12.2.
PLAIN = {
    "enablePipelining": False, "enableReplicatedGraphs": False, "enableGradientAccumulation": False,
    "constantWeights": False, "enableLoadAndOffloadRNGState": True,
    "engineOptions": {"debug.retainDebugInformation": "false"}
}  # fmt: skip
PIPELINED = {"enablePipelining": True, "autoRecomputation": 3, "virtualGraphMode": 1}


class TestDerivedSettings:
    @pytest.fixture(autouse=True)
    def debug_level(self) -> Iterator[None]:
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
            ("dotChecks", ["a", "b"], [f"poptorch.Options added {value} to dotChecks" for value in "ab"]),
            ("engineOptions", {"a.b": "c"}, ["poptorch.Options set engineOptions[a.b] to c"]),
            ("available_memory_proportion", {0: 0.5}, ["poptorch.Options set available_memory_proportion[0] to 0.5"]),
            ("anchored_tensors", {"g": ["w", False, OutputMode.EveryN, 3]}, ["anchor ( w EVERYN/3 )"]),
            ("anchored_tensors", {"g": ["w", False, OutputMode.Sum, 1]}, ["anchor ( w Sum/1 )"]),
            ("ipuof_configs", {}, []),
        ],
    )
    def test_lines_of_one_option(self, key: str, value: Any, lines: list[str]) -> None:
        assert list(option_lines({key: value})) == lines

    def test_options_are_logged_at_debug_level_by_the_native_logger(self, capsys: pytest.CaptureFixture[str]) -> None:
        options = Options().outputMode(OutputMode.All).setExecutionStrategy(ShardedExecution())
        log_options(options)
        lines = capsys.readouterr().err.splitlines()
        assert all("] [poptorch:cpp] [debug] " in line for line in lines)
        assert lines[-1].endswith("poptorch.Options set execution_mode to value 1")
        _logging.setLogLevel("WARN")
        log_options(options)
        assert capsys.readouterr().err == ""

    @pytest.mark.parametrize(
        ("options", "program", "changed"),
        [
            (Options(), {"ipus": 1}, {}),
            (Options(), {"ipus": 4}, PIPELINED),
            (Options().setExecutionStrategy(ShardedExecution()), {"ipus": 4}, {"virtualGraphMode": 1}),
            *(
                (
                    Options().setExecutionStrategy(kind("A")),
                    {"ipus": 2},
                    {"virtualGraphMode": 3, "executionPhaseSettings.stages": n, "executionPhaseSettings.phases": 1}
                )
                for n, kind in enumerate((poptorch.SerialPhasedExecution, poptorch.ParallelPhasedExecution), start=1)
            ),
            (
                Options(),
                {"ipus": 2, "gradient_clipping": True, "overlapped_io": True},
                {
                    **PIPELINED, "accumulateOuterFragmentSettings.schedule": 0, "useHostCopyOps": True,
                    "enableExplicitMainLoops": True
                }
            )
        ]
    )  # fmt: skip
    def test_they_follow_from_strategy_and_program(
        self, options: Options, program: dict[str, Any], changed: dict[str, Any], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert derived_settings(options, **program) == PLAIN | changed
        pipelined = int(bool(changed.get("enablePipelining")))
        assert f"[debug] enablePipelining set to value {pipelined}" in capsys.readouterr().err

    def test_accumulation_and_several_processes(self) -> None:
        options = Options().replicationFactor(2)
        options.Training.gradientAccumulation(8)
        options.Distributed.configureProcessId(3, 4)
        assert derived_settings(options, ipus=1) == PLAIN | {
            "enableReplicatedGraphs": True, "enableGradientAccumulation": True,
            "enableDistributedReplicatedGraphs": True, "globalReplicationFactor": 2 * 4, "globalReplicaOffset": 2 * 3
        }  # fmt: skip

    def test_the_user_may_force_a_derived_setting(self, capsys: pytest.CaptureFixture[str]) -> None:
        options = Options()
        options._Popart.set("autoRecomputation", 0)
        options._Popart.set("enablePipelining", True)
        options._Popart.setEngineOptions({"debug.retainDebugInformation": "true", "x": "y"})
        settings = derived_settings(options, ipus=2)
        assert settings["autoRecomputation"] == 0
        assert settings["engineOptions"] == {"debug.retainDebugInformation": "true", "x": "y"}
        warnings = [line for line in capsys.readouterr().err.splitlines() if "[warning]" in line]
        assert len(warnings) == 2  # enablePipelining agrees with the derived value.
        assert "autoRecomputation forced by the user to 0: the value 3 is ignored" in warnings[0]
