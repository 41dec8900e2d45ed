"""Options from files, from JSON and from the environment (options reference, sections 1.5 and 11)."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import poptorch
from poptorch.enums import ConnectionType, OutputMode
from poptorch.options import ConfigFileError, Options, ShardedExecution


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "my.conf"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_holds_statements_as_they_would_follow_options(tmp_path: Path) -> None:
    path = _file(
        tmp_path,
        "# a comment\n\n   deviceIterations(4)\nTraining.gradientAccumulation(8)  # trailing\n"
        "modelName('m')\n_Popart.set('outlineThreshold', max(1.0, 10.0))\n",
    )
    options = Options()
    assert options.loadFromFile(path) is options
    assert options.device_iterations == 4
    assert options.Training.gradient_accumulation == 8
    assert options.model_name == "m"
    assert options._Popart.options["outlineThreshold"] == 10.0


def test_statements_may_name_poptorch_and_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poptorch, "ShardedExecution", ShardedExecution, raising=False)
    path = _file(
        tmp_path,
        "deviceIterations(4)\nsetExecutionStrategy(poptorch.ShardedExecution())\n"
        "replicationFactor(options.device_iterations // 2)\n",
    )
    options = Options().loadFromFile(str(path))
    assert isinstance(options._execution_strategy, ShardedExecution)
    assert options.replication_factor == 2


def test_a_statement_sees_no_other_names(tmp_path: Path) -> None:
    with pytest.raises(NameError, match="torch"):
        Options().loadFromFile(_file(tmp_path, "Precision.setPartialsType(torch.half)\n"))


def test_a_second_file_overrides_only_what_it_mentions(tmp_path: Path) -> None:
    options = Options().loadFromFile(_file(tmp_path, "deviceIterations(4)\nreplicationFactor(2)\n"))
    options.loadFromFile(_file(tmp_path, "deviceIterations(5)\n"))
    assert (options.device_iterations, options.replication_factor) == (5, 2)


def test_a_syntax_error_applies_nothing_and_counts_statements_only(tmp_path: Path) -> None:
    path = _file(tmp_path, "# one\n\ndeviceIterations(4)\n\n# two\nreplicationFactor(2\nlogDir('x')\n")
    options = Options()
    with pytest.raises(ConfigFileError) as caught:
        options.loadFromFile(path)
    first, second = str(caught.value).split("\n")
    assert first.startswith("SyntaxError at line 2 of my.conf: ")
    assert len(first) > len("SyntaxError at line 2 of my.conf: ")
    assert second == "> options.replicationFactor(2"
    assert repr(options) == repr(Options())
    assert ConfigFileError.__bases__ == (Exception,)
    assert ConfigFileError.__module__ == "poptorch.options"


def test_a_statement_may_build_what_setters_take(tmp_path: Path) -> None:
    path = _file(
        tmp_path,
        "setExecutionStrategy(poptorch.PipelinedExecution(poptorch.Stage('a').ipu(-1 + 2), ['b', 'c']))\n"
        "outputMode(poptorch.OutputMode.EveryN, 2)\n"
        "TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))\n"
        "setAvailableMemoryProportion({'IPU0': 0.2 * 2})\nshowCompilationProgressBar(show=not True)\n",
    )
    own = Options().setExecutionStrategy(poptorch.PipelinedExecution(poptorch.Stage("a").ipu(1), ["b", "c"]))
    own.outputMode(OutputMode.EveryN, 2)
    own.TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
    own.setAvailableMemoryProportion({"IPU0": 0.4}).showCompilationProgressBar(False)
    found = Options().loadFromFile(path)
    assert repr(found._execution_strategy.stage("a")) == "Stage('a').ipu(1)"
    assert found.toDict() == own.toDict()


@pytest.mark.parametrize(
    "statement",
    [
        "deviceIterations(open('/tmp/harm', 'w').write('x'))",
        "deviceIterations(__import__('os').getpid())",
        "deviceIterations(eval('4'))",
        "__class__.__init__.__globals__",
        "deviceIterations(4).__class__",
        "deviceIterations(poptorch.os.getpid())",
        "deviceIterations(poptorch.load('x', weights_only=False))",
        "deviceIterations(poptorch.enums.Enum)",
        "anchored_tensors.clear()",
        "modelName('{0.__class__}'.format(options))",
        "modelName('a' * 1000000000)",
        "deviceIterations((lambda: 4)())",
        "deviceIterations([x for x in (4,)][0])",
        "deviceIterations(*[4])",
        "deviceIterations(**{'device_iterations': 4})",
        "deviceIterations(10 ** 1000000000)",
        "deviceIterations(4); logDir('x')",
        "device_iterations = 4",
        "deviceIterations(x := 4)",
    ],
)
def test_anything_but_settings_is_refused_and_applies_nothing(
    statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = Options()
    with pytest.raises(ConfigFileError, match=r"Line \d of my\.conf has .*nothing else in it is run") as caught:
        options.loadFromFile(_file(tmp_path, f"\n{statement.replace('/tmp/', '')}\nreplicationFactor(3)\n"))
    assert str(caught.value).endswith(f"> options.{statement.replace('/tmp/', '')}")
    assert repr(options) == repr(Options())
    assert [each.name for each in tmp_path.iterdir()] == ["my.conf"]


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe", b"deviceIterations(4\x00)", b"deviceIterations(" + b"-" * 100_000 + b"1)", b"#" * 1_000_001],
    ids=["no text", "a null byte", "nested", "oversized"],
)
def test_a_file_of_something_else_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "my.conf"
    path.write_bytes(content)
    with pytest.raises(ConfigFileError, match=r"my\.conf"):
        Options().loadFromFile(path)


@given(st.text(alphabet="deviceIterations().poptorch_Popart'[]{}:,+-*/ 0123456789lambda#@~", max_size=60))
def test_no_text_does_more_than_settings(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("options") / "my.conf"
    path.write_text(text, encoding="utf-8")
    with contextlib.suppress(ConfigFileError, NameError, AttributeError, AssertionError, TypeError, ValueError):
        Options().loadFromFile(path)


@pytest.mark.parametrize(
    ("accessor", "error"),
    [
        ("__init__.__globals__.clear", AttributeError),
        ("_Popart._set", AttributeError),
        ("_Popart.options.clear", TypeError),
        ("device_iterations.bit_length", TypeError),
        ("device_iterations", TypeError),
    ],
)
def test_json_reaches_nothing_but_setters(accessor: str, error: type[Exception]) -> None:
    options = Options()
    with pytest.raises(error, match="Options as JSON: "):
        options.from_json(json.dumps({accessor: []}))
    assert repr(options) == repr(Options())


def test_json_that_is_nested_too_deeply_is_no_object() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        Options().from_json('{"deviceIterations": ' + "[" * 1_000_000)


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("noSuchOption(4)", AttributeError),
        ("deviceIterations('4')", AssertionError),
        ("outputMode()", TypeError),
    ],
)
def test_other_errors_pass_through_and_earlier_statements_stay(
    statement: str, error: type[Exception], tmp_path: Path
) -> None:
    options = Options()
    with pytest.raises(error):
        options.loadFromFile(_file(tmp_path, f"replicationFactor(3)\n{statement}\ndeviceIterations(9)\n"))
    assert (options.replication_factor, options.device_iterations) == (3, 1)


def test_a_missing_file_is_a_file_not_found_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Options().loadFromFile(tmp_path / "none.conf")


def test_json_calls_dotted_accessors_in_order() -> None:
    options = Options()
    settings = {
        "deviceIterations": 3,
        "Precision.enableFloatingPointExceptions": True,
        "connectionType": "ConnectionType.OnDemand",
        "_Popart.set": ["saveInitializersToFile", "w.onnx"],
        "Training.gradientAccumulation": 4,
    }
    assert options.from_json(json.dumps(settings)) is options
    assert options.device_iterations == 3
    assert options.connection_type == ConnectionType.OnDemand
    assert options.Training.gradient_accumulation == 4
    assert options._Popart.options["enableFloatingPointChecks"] is True
    assert options._Popart.options["saveInitializersToFile"] == "w.onnx"


@pytest.mark.parametrize("text", ["plain", "NoEnum.Member", "OutputMode.NoMember", "OutputMode", "IntEnum.x", "a.b.c"])
def test_json_strings_that_name_no_member_stay_strings(text: str) -> None:
    assert Options().from_json(json.dumps({"modelName": text})).model_name == text


def test_json_does_not_convert_strings_in_lists() -> None:
    with pytest.raises(AssertionError, match=r"must be a poptorch\.OutputMode"):
        Options().from_json('{"outputMode": ["OutputMode.EveryN", 2]}')


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", json.JSONDecodeError),
        ('{"noSuch": 1}', AttributeError),
        ('{"Training.noSuch": 1}', AttributeError),
        ('{"deviceIterations": "4"}', AssertionError),
        ("[1]", ValueError),
    ],
)
def test_json_errors(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        Options().from_json(text)


def test_a_cache_directory_in_the_environment_enables_caching(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_CACHE_DIR", "from_env")
    assert repr(Options()) == _without(monkeypatch, "POPTORCH_CACHE_DIR", Options.enableExecutableCaching, "from_env")
    monkeypatch.setenv("POPTORCH_CACHE_DIR", "")
    assert "cachePath" not in Options()._Popart.options


def _without(monkeypatch: pytest.MonkeyPatch, variable: str, setter: Any, value: object) -> str:
    monkeypatch.delenv(variable)
    return repr(setter(Options(), value))


def test_default_options_of_the_environment_come_after_the_cache_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POPTORCH_CACHE_DIR", "from_env")
    monkeypatch.setenv(
        "POPTORCH_DEFAULT_OPTIONS", '{"enableExecutableCaching": "from_json", "outputMode": "OutputMode.All"}'
    )
    options = Options()
    assert options._Popart.options["cachePath"] == "from_json"
    assert options.output_mode == OutputMode.All


def test_malformed_default_options_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", "{")
    with pytest.raises(json.JSONDecodeError):
        Options()
