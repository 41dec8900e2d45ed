"""Options from files, from JSON and from the environment (options reference, sections 1.5 and 11)."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import poptorch
from poptorch.enums import ConnectionType, OutputMode
from poptorch.options import ConfigFileError, Options

NO_SETTINGS = """
deviceIterations(open('harm', 'w').write('x'))
deviceIterations(__import__('os').getpid())
deviceIterations(eval('4'))
__class__.__init__.__globals__
deviceIterations(4).__class__
deviceIterations(poptorch.os.getpid())
deviceIterations(poptorch.load('x', weights_only=False))
deviceIterations(poptorch.enums.Enum)
anchored_tensors.clear()
modelName('{0.__class__}'.format(options))
modelName('a' * 1000000000)
deviceIterations((lambda: 4)())
deviceIterations([x for x in (4,)][0])
deviceIterations(*[4])
deviceIterations(**{'device_iterations': 4})
deviceIterations(10 ** 1000000000)
deviceIterations(4); logDir('x')
device_iterations = 4
deviceIterations(x := 4)
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

    @pytest.mark.parametrize(
        ("statement", "error", "factor"),
        [
            ("noSuchOption(4)", AttributeError, 3),
            ("deviceIterations('4')", AssertionError, 3),
            ("outputMode()", TypeError, 3),
            ("Precision.setPartialsType(torch.half)", NameError, 1),  # unknown names are found before anything runs
        ],
    )
    def test_other_errors_pass_through_and_earlier_statements_stay(
        self, statement: str, error: type[Exception], factor: int, file: Path
    ) -> None:
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
