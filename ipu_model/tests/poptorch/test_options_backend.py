"""Options: texts that they are read from, and what reaches the backend (options reference, 1.5, 3.2, 9 to 12)."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import popart
import poptorch
from ipu_model.errors import Error
from poptorch.enums import ConnectionType, OutputMode
from poptorch.options import ConfigFileError, Options, ShardedExecution, log_options
from poptorch.options.backend import EngineOptions, key_tables, read_engine_options, validate_options
from poptorch.options.options import derived_settings, option_lines

NO_SETTINGS = """
deviceIterations(open('harm', 'w').write('x'))
deviceIterations(__import__('os').getpid())
__class__.__init__.__globals__
deviceIterations(4).__class__
deviceIterations(poptorch.load('x', weights_only=False))
anchored_tensors.clear()
modelName('{0.__class__}'.format(options))
modelName('a' * 1000000000)
deviceIterations((lambda: 4)())
deviceIterations(*[4])
deviceIterations(**{'device_iterations': 4})
deviceIterations(10 ** 1000000000)
deviceIterations(4); logDir('x')
device_iterations = 4
""".strip().splitlines()


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "my.conf"


class TestFile:
    def test_it_holds_statements_as_they_would_follow_options(self, file: Path) -> None:
        file.write_text(
            "# a comment\n\n   deviceIterations(4)\nTraining.gradientAccumulation(8)  # trailing\n"
            "_Popart.set('outlineThreshold', max(1.0, 10.0))\nreplicationFactor(options.device_iterations // 2)\n"
            "setExecutionStrategy(poptorch.PipelinedExecution(poptorch.Stage('a').ipu(-1 + 2), ['b', 'c']))\n"
            "outputMode(poptorch.OutputMode.EveryN, 2)\n"
            "TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))\n"
            "setAvailableMemoryProportion({'IPU0': 0.2 * 2})\nshowCompilationProgressBar(show=not True)\n"
        )
        own = Options().deviceIterations(4).replicationFactor(2).outputMode(OutputMode.EveryN, 2)
        own.Training.gradientAccumulation(8)
        own._Popart.set("outlineThreshold", 10.0)
        own.TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
        own.setAvailableMemoryProportion({"IPU0": 0.4}).showCompilationProgressBar(False)
        options = Options()
        assert options.loadFromFile(str(file)) is options
        assert repr(options._execution_strategy.stage("a")) == "Stage('a').ipu(1)"
        assert options.toDict() == own.toDict()
        file.write_text("deviceIterations(5)\n")  # a second file overrides only what it mentions
        assert repr(options.loadFromFile(file)) == repr(own.deviceIterations(5))

    def test_a_syntax_error_applies_nothing_and_counts_statements_only(self, file: Path) -> None:
        file.write_text("# one\n\ndeviceIterations(4)\n\n# two\nreplicationFactor(2\nlogDir('x')\n")
        options = Options()
        with pytest.raises(ConfigFileError, match=r"^SyntaxError at line 2 of my\.conf: .+\n> options\.repl.*2$"):
            options.loadFromFile(file)
        assert repr(options) == repr(Options())
        assert ConfigFileError.__bases__ == (Exception,)
        assert ConfigFileError.__module__ == "poptorch.options"

    @pytest.mark.parametrize("statement", NO_SETTINGS)
    def test_anything_but_settings_is_refused_and_applies_nothing(self, statement: str, file: Path) -> None:
        file.write_text(f"\n{statement}\nreplicationFactor(3)\n")
        options = Options()
        with pytest.raises(ConfigFileError, match=r"Line \d of my\.conf has .*nothing else in it is run") as caught:
            options.loadFromFile(file)
        assert str(caught.value).endswith(f"> options.{statement}")
        assert repr(options) == repr(Options())
        assert list(file.parent.iterdir()) == [file]

    @pytest.mark.parametrize(
        "content",
        [b"\xff\xfe", b"deviceIterations(4\x00)", b"deviceIterations(" + b"-" * 100_000 + b"1)", b"#" * 1_000_001],
        ids=["no text", "a null byte", "nested", "oversized"],
    )
    def test_a_file_of_something_else_is_refused_by_name(self, content: bytes, file: Path) -> None:
        file.write_bytes(content)
        with pytest.raises(ConfigFileError, match=r"my\.conf"):
            Options().loadFromFile(file)

    @pytest.mark.parametrize("path", ["/dev/zero", "pipe", "folder"])
    def test_what_is_no_file_is_refused_at_once(self, path: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(file.parent)
        os.mkfifo("pipe")
        os.mkdir("folder")
        with pytest.raises(IsADirectoryError if path == "folder" else ConfigFileError, match=path):
            Options().loadFromFile(path)

    def test_a_file_that_loads_itself_is_refused_and_one_that_is_loaded_twice_is_not(self, file: Path) -> None:
        other = file.with_name("other.conf")
        other.write_text("deviceIterations(4)\n")
        file.write_text(f"loadFromFile({str(other)!r})\n" * 2)
        options = Options()
        options.loadFromFile(file)
        assert options.device_iterations == 4
        for path in (file, other):
            other.write_text(f"loadFromFile({str(path)!r})\n")
            for _ in range(2):  # nothing of the first refusal stays
                with pytest.raises(ConfigFileError, match=rf"{path.name} loads itself, directly or through another"):
                    Options().loadFromFile(file)

    @pytest.mark.parametrize(
        ("statement", "error", "factor"),
        [
            ("noSuchOption(4)", AttributeError, 3),
            ("deviceIterations('4')", AssertionError, 3),
            ("outputMode()", TypeError, 3),
            ("Precision.setPartialsType(torch.half)", NameError, 1),  # unknown names are found before anything runs
        ],
    )
    def test_other_errors_pass_through_and_earlier_statements_stay(self, statement, error, factor, file) -> None:
        file.write_text(f"replicationFactor(3)\n{statement}\ndeviceIterations(9)\n")
        options = Options()
        with pytest.raises(error):
            options.loadFromFile(file)
        assert (options.replication_factor, options.device_iterations) == (factor, 1)
        with pytest.raises(FileNotFoundError):
            options.loadFromFile(file.with_name("none.conf"))

    @given(st.text(alphabet="deviceIterations().poptorch_Popart'[]{}:,+-*/ 0123456789lambda#@~", max_size=60))
    def test_no_text_does_more_than_settings(self, tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
        path = tmp_path_factory.mktemp("options") / "my.conf"
        path.write_text(text, encoding="utf-8")
        with contextlib.suppress(ConfigFileError, NameError, AttributeError, AssertionError, TypeError, ValueError):
            Options().loadFromFile(path)


class TestJson:
    def test_it_calls_dotted_accessors_in_order(self) -> None:
        options = Options()
        settings = {
            "deviceIterations": 3, "Precision.enableFloatingPointExceptions": True,
            "connectionType": "ConnectionType.OnDemand", "_Popart.set": ["saveInitializersToFile", "w.onnx"],
            "Training.gradientAccumulation": 4
        }  # fmt: skip
        assert options.from_json(json.dumps(settings)) is options
        assert options.device_iterations == 3
        assert options.connection_type == ConnectionType.OnDemand
        assert options.Training.gradient_accumulation == 4
        assert options._Popart.options["enableFloatingPointChecks"] is True
        assert options._Popart.options["saveInitializersToFile"] == "w.onnx"

    @pytest.mark.parametrize("text", ["plain", "NoEnum.x", "OutputMode.NoMember", "OutputMode", "IntEnum.x", "a.b.c"])
    def test_strings_that_name_no_member_stay_strings(self, text: str) -> None:
        assert Options().from_json(json.dumps({"modelName": text})).model_name == text


class TestEnvironment:
    def test_default_options_come_after_the_cache_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cached = repr(Options().enableExecutableCaching("from_env"))
        monkeypatch.setenv("POPTORCH_CACHE_DIR", "from_env")
        assert repr(Options()) == cached
        text = '{"enableExecutableCaching": "from_json", "outputMode": "OutputMode.All"}'
        monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", text)
        assert Options()._Popart.options["cachePath"] == "from_json"
        assert Options().output_mode == OutputMode.All
        monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", "{")
        with pytest.raises(json.JSONDecodeError):
            Options()
        monkeypatch.delenv("POPTORCH_DEFAULT_OPTIONS")
        monkeypatch.setenv("POPTORCH_CACHE_DIR", "")  # no cache
        assert "cachePath" not in Options()._Popart.options


SAMPLES = {"bool": True, "uint64": 1, "float": 0.5, "string": "text", "container": ["text"], "map": {"key": "text"}}


KNOWN: list[tuple[str, Any]] = [
    ("autoRecomputation", 3), ("autoRecomputation", popart.RecomputationType.Pipeline), ("outlineThreshold", 10.0),
    ("disableGradAccumulationTensorStreams", True), ("saveInitializersToFile", "w.onnx"),
    ("accumulateOuterFragmentSettings.excludedVirtualGraphs", ["0", "1"]), ("hardwareInstrumentations", {0, 1}),
    ("customCodelets", ("a.cpp",)), ("engineOptions", {"target.syncReplicasIndependently": "true"}),
    ("convolutionOptions", {"enableConvDithering": True}), ("swapLimitScheduler", 2**64 - 1),
    ("defaultPrefetchBufferingDepth", 3), ("logDir", "x"),
]  # fmt: skip


class TestValidation:
    def test_known_keys_with_values_of_their_type_pass(self, capsys: pytest.CaptureFixture[str]) -> None:
        for key, value in KNOWN:
            validate_options({key: value})
        (warning,) = capsys.readouterr().err.splitlines()
        assert "poptorch.Options.logDir" in warning

    @given(st.sampled_from(sorted(SAMPLES)), st.sampled_from(sorted(SAMPLES)), st.data())
    def test_the_type_decides_the_table(self, of_key: str, of_value: str, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(key_tables().keys[of_key] - {"patterns", "logDir"})))
        refuses = pytest.raises(Error, match=r"Unknown .* option")
        with contextlib.nullcontext() if of_key == of_value else refuses:
            validate_options({key: SAMPLES[of_value]})


VARIABLE = "POPLAR_ENGINE_OPTIONS"
ALL, GRAPH, EXECUTION = (f"autoReport.{key}" for key in ("all", "outputGraphProfile", "outputExecutionProfile"))


class TestEngineOptions:
    @pytest.fixture(autouse=True)
    def no_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(VARIABLE, raising=False)

    def test_what_they_ask_for(self) -> None:
        both = EngineOptions(report=True, execution=True)
        profiled = Options().enableProfiling("folder")._Popart.options["engineOptions"]
        for options, expected in (
            ({}, EngineOptions(report=False, execution=False, directory=".", allow_out_of_memory=True)),
            ({"debug.retainDebugInformation": "true"}, EngineOptions()),  # has no meaning here
            (profiled, EngineOptions(report=True, execution=True, directory="folder", allow_out_of_memory=True)),
            ({ALL: True}, both),  # JSON's own truth values
            ({ALL: False}, EngineOptions()),
            ({ALL: "true", EXECUTION: "false"}, EngineOptions(report=True, execution=False)),
            ({GRAPH: "true"}, EngineOptions(report=True, execution=False)),
            ({EXECUTION: "true"}, both),
            ({ALL: "true", GRAPH: "false"}, both),
            ({ALL: "true", GRAPH: "false", EXECUTION: "false"}, EngineOptions()),
            # Off, "nothing can be analysed" (guide 6.1); on by default since SDK 2.1.
            ({"debug.allowOutOfMemory": "false"}, EngineOptions(allow_out_of_memory=False)),
        ):
            assert read_engine_options(options) == expected, options

    def test_the_environment_asks_in_the_same_words_and_wins(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(VARIABLE, '{"autoReport.all": "true", "autoReport.directory": "there", "x": "3"}')
        there = EngineOptions(report=True, execution=True, directory="there", from_environment=True)
        assert read_engine_options({}) == there
        monkeypatch.setenv(VARIABLE, '{"autoReport.all": "false", "debug.allowOutOfMemory": "false"}')
        asked = Options().enableProfiling("folder")._Popart.options["engineOptions"]
        assert read_engine_options(asked) == EngineOptions(directory="folder", allow_out_of_memory=False)

    @pytest.mark.parametrize("text", ["{autoReport.all: true}", " ", "[" * 100_000, '["autoReport.all"]', "null"])
    def test_a_variable_that_cannot_be_read(self, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(VARIABLE, text)
        words = "must be a JSON object" if text in ("null", '["autoReport.all"]') else "not valid JSON"
        for read in (lambda: read_engine_options({}), lambda: Options().enableProfiling()):
            with pytest.raises(Error, match=f"{VARIABLE}.*{words}"):
                read()


# What is set in any case; `changed` of a case is what differs. Section 12.2.
PLAIN = {
    "enablePipelining": False, "enableReplicatedGraphs": False, "enableGradientAccumulation": False,
    "constantWeights": False, "enableLoadAndOffloadRNGState": True,
    "engineOptions[debug.retainDebugInformation]": "false",
}  # fmt: skip
PIPELINED = {"enablePipelining": True, "autoRecomputation": 3, "virtualGraphMode": 1}


SCHEDULED = {"accumulateOuterFragmentSettings.schedule": 0, "useHostCopyOps": True, "enableExplicitMainLoops": True}
PHASED = {"virtualGraphMode": 3, "executionPhaseSettings.phases": 1}
STORED: dict[str, Any] = {
    "broadcast_buffers": True, "device_iterations": 4, "output_mode": OutputMode.All, "log_dir": ".",
    "dotChecks": ["a", "b"], "engineOptions": {"a.b": "c"}, "available_memory_proportion": {0: 0.5},
    "anchored_tensors": {"g": ["w", False, OutputMode.EveryN, 3], "h": ["v", False, OutputMode.Sum, 1]},
    "ipuof_configs": {},
}  # fmt: skip


class TestDerivedSettings:
    @pytest.fixture(autouse=True)
    def debug_level(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("DEBUG", "poptorch:cpp")

    def test_each_option_has_a_line(self) -> None:
        assert list(option_lines(STORED)) == [
            "poptorch.Options set broadcast_buffers to value true",
            "poptorch.Options set device_iterations to value 4",
            "poptorch.Options set output_mode to value 2",
            "poptorch.Options set log_dir to value .",
            "poptorch.Options added a to dotChecks",
            "poptorch.Options added b to dotChecks",
            "poptorch.Options set engineOptions[a.b] to c",
            "poptorch.Options set available_memory_proportion[0] to 0.5",
            "anchor ( w EVERYN/3 )",
            "anchor ( v Sum/1 )",
        ]

    def test_options_are_logged_at_debug_level_by_the_native_logger(self, caplog: pytest.LogCaptureFixture) -> None:
        log_options(Options().outputMode(OutputMode.All).setExecutionStrategy(ShardedExecution()))
        assert {(record.name, record.levelname) for record in caplog.records} == {("poptorch:cpp", "DEBUG")}
        assert caplog.messages[-1] == "poptorch.Options set execution_mode to value 1"

    @pytest.mark.parametrize(
        ("strategy", "program", "changed"),
        [
            (None, {"ipus": 1}, {}),
            (None, {"ipus": 4}, PIPELINED),
            (ShardedExecution(), {"ipus": 4}, {"virtualGraphMode": 1}),
            (poptorch.SerialPhasedExecution("A"), {"ipus": 2}, {**PHASED, "executionPhaseSettings.stages": 1}),
            (poptorch.ParallelPhasedExecution("A"), {"ipus": 2}, {**PHASED, "executionPhaseSettings.stages": 2}),
            (None, {"ipus": 2, "gradient_clipping": True, "overlapped_io": True}, {**PIPELINED, **SCHEDULED}),
        ],
    )
    def test_they_follow_from_strategy_and_program(self, strategy, program, changed, caplog) -> None:
        options = Options().setExecutionStrategy(strategy) if strategy else Options()
        assert derived_settings(options, **program) == PLAIN | changed
        pipelined = int(bool(changed.get("enablePipelining")))
        assert f"enablePipelining set to value {pipelined}" in caplog.messages

    def test_accumulation_and_several_processes(self) -> None:
        options = Options().replicationFactor(2)
        options.Training.gradientAccumulation(8)
        options.Distributed.configureProcessId(3, 4)
        assert derived_settings(options, ipus=1) == PLAIN | {
            "enableReplicatedGraphs": True, "enableGradientAccumulation": True,
            "enableDistributedReplicatedGraphs": True, "globalReplicationFactor": 2 * 4, "globalReplicaOffset": 2 * 3
        }  # fmt: skip

    def test_the_user_may_force_a_derived_setting(self, caplog: pytest.LogCaptureFixture) -> None:
        options = Options()
        options._Popart.set("autoRecomputation", 0)
        options._Popart.set("enablePipelining", True)
        options._Popart.setEngineOptions({"debug.retainDebugInformation": "true", "x": "y"})
        settings = derived_settings(options, ipus=2)
        assert settings["autoRecomputation"] == 0
        assert settings["engineOptions[debug.retainDebugInformation]"] == "true"
        warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert len(warnings) == 2  # enablePipelining agrees with the derived value.
        assert "autoRecomputation forced by the user to 0: the value 3 is ignored" in warnings[0]
