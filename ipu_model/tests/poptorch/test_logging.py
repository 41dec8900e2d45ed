"""What PopTorch tells: loggers, errors, messages of a compilation (options reference, 11, 12; execution, 14, 17)."""

from __future__ import annotations

import copy
import io
import json
import logging
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from executor_support import in_training, on_device, pickled, quiet
from torch import Tensor

import poptorch
from poptorch import _logging
from poptorch._logging import logger, native_logger, once_logger, setLogLevel, setPopartLogLevel
from poptorch.poptorch_core import TestErrorType, _throwTestError

ENGINES = logging.getLogger("ipu_model")
WORDS = ["trace", "debug", "info", "warning", "error", "critical"]
# By how much they show, those for insiders included.
LEVELS = {
    "TRACE_ALL": _logging.TRACE_ALL, "TRACE": _logging.TRACE, "DEBUG_IR": _logging.DEBUG_IR, "DEBUG": logging.DEBUG,
    "INFO": logging.INFO, "WARN": logging.WARNING, "ERR": logging.ERROR, "OFF": _logging.OFF,
}  # fmt: skip
NUMBERS = {0: "TRACE", 1: "DEBUG", 2: "INFO", 3: "WARN", 4: "ERR", 6: "OFF"}


@pytest.fixture(autouse=True)
def _levels_restored() -> Iterator[None]:
    levels = {target: target.level for target in (logger, native_logger, ENGINES)}
    _logging.repeat_filter.start(4)
    yield
    for target, level in levels.items():
        target.setLevel(level)


@pytest.mark.parametrize(("target", "name"), [(logger, "poptorch::python"), (native_logger, "poptorch:cpp")])
def test_a_line_on_stderr(target: logging.Logger, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert logger is logging.getLogger("poptorch::python")
    setLogLevel("TRACE")
    logger.setLevel(_logging.TRACE)
    for level in (_logging.TRACE, *range(logging.DEBUG, logging.CRITICAL + 1, 10)):
        target.log(level, "text %d", 3)
    captured = capsys.readouterr()
    assert captured.out == ""
    for line, word in zip(captured.err.splitlines(), WORDS, strict=True):
        assert re.fullmatch(rf"\[\d\d:\d\d:\d\d\.\d\d\d\] \[{name}\] \[{word}\] text 3", line)


def test_levels_are_coloured_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, file = io.StringIO(), io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    for stream in (terminal, file):
        monkeypatch.setattr(sys, "stderr", stream)
        logger.warning("text")
    assert ("\033[" in terminal.getvalue(), "\033[" in file.getvalue()) == (True, False)


def test_levels_by_name_and_by_number() -> None:
    for level, number in (LEVELS | {n: LEVELS[name] for n, name in NUMBERS.items()}).items():
        setLogLevel(level)
        assert native_logger.level == number
        assert logger.level == max(number, logging.DEBUG)
    assert sorted(set(LEVELS.values())) == list(LEVELS.values())
    setLogLevel("ERR")
    setLogLevel("INFO", update_cpp=False)  # the level of what compilation says stays
    assert (logger.level, native_logger.level) == (logging.INFO, logging.ERROR)


def test_the_backend_level_goes_to_the_engine() -> None:
    for level in ("DEBUG", "TRACE_ALL"):
        setPopartLogLevel(level)
        assert ENGINES.level == LEVELS[level]


def test_log_once_says_each_message_once(capsys: pytest.CaptureFixture[str]) -> None:
    once = once_logger()
    for message in ("a", "b", "a", "a"):
        once(logging.WARNING, message)
    once_logger()(logging.WARNING, "a")
    assert [line[-1] for line in capsys.readouterr().err.splitlines()] == ["a", "b", "a"]
    setLogLevel("OFF")
    logger.critical("text")
    assert capsys.readouterr().err == ""


def test_repeated_native_lines_are_suppressed_after_the_given_number(capsys: pytest.CaptureFixture[str]) -> None:
    _logging.repeat_filter.start(2)
    for _ in range(5):
        native_logger.warning("again %d", 1)
    native_logger.warning("again %d", 2)
    lines = [line.split("] ", 3)[-1] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["again 1", "again 1", "...repeated messages suppressed...", "again 2"]


class TestEnvironment:
    def test_the_environment_sets_the_level(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for value, level in (("ERR", logging.ERROR), ("", logging.WARNING)):
            monkeypatch.setenv("POPTORCH_LOG_LEVEL", value)
            _logging._install()
            assert logger.level == level
        command = [sys.executable, "-c", "import poptorch._logging"]
        environment = {**os.environ, "POPTORCH_LOG_LEVEL": "LOUD"}
        result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert result.returncode == 1
        assert "ValueError: Unknown log level: LOUD" in result.stderr

    def test_importing_makes_forks_safe_for_rdma(self) -> None:
        """Options reference, section 11: set to 1 unless the environment has a value."""
        assert "RDMAV_FORK_SAFE" in os.environ

    @pytest.mark.parametrize("destination", ["stdout", "stderr", "native.log"])
    def test_native_lines_can_go_to_a_stream_or_to_a_file_which_is_truncated(
        self, destination: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / destination
        path.write_text("old content\n")
        monkeypatch.setenv("POPTORCH_LOG_DEST", str(path) if path.suffix else destination)
        handler = _logging._native_handler()
        for text in ("first", "second"):
            handler.emit(logging.LogRecord("poptorch:cpp", logging.WARNING, __file__, 1, text, None, None))
        handler.close()
        shown = capsys.readouterr()
        written = {"stdout": shown.out, "stderr": shown.err, "native.log": path.read_text()}
        lines = [line.split("] ", 1)[1] for line in written[destination].splitlines()]
        assert lines == ["[poptorch:cpp] [warning] first", "[poptorch:cpp] [warning] second"]
        assert shown.err == "" or destination == "stderr"


def test_uncaught_exceptions_become_critical_lines(monkeypatch, capsys) -> None:
    previous: list[object] = []
    monkeypatch.setattr(_logging, "_previous_excepthook", lambda *args: previous.append(args))
    divided = (ZeroDivisionError, ZeroDivisionError("divided"), None)
    _logging._excepthook(*divided)
    shown = capsys.readouterr().err
    assert "[poptorch::python] [critical] divided\n" in shown
    assert "ZeroDivisionError: divided" in shown
    _logging._excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    setLogLevel("OFF")
    _logging._excepthook(*divided)
    assert [kind for kind, *_ in previous] == [KeyboardInterrupt, ZeroDivisionError]
    assert capsys.readouterr().err == ""


# Kind of error on demand -> class and `type`.
KINDS = {
    "Poptorch": (poptorch.Error, "poptorch_cpp_error"),
    "Popart": (poptorch.Error, "popart_exception"),
    "PopartInternal": (poptorch.Error, "popart_internal_exception"),
    "Poplibs": (poptorch.Error, "poplibs_exception"),
    "PoplarUnrecoverable": (poptorch.UnrecoverableError, "poplar_unrecoverable_runtime_error"),
    "PoplarUnknown": (poptorch.Error, "poplar_unknown_runtime_error"),
    "PoplarRecoverableFullReset": (poptorch.RecoverableError, "poplar_recoverable_runtime_error"),
    "PoplarLinkError": (poptorch.Error, "poplar_link_error"),
}


def test_the_only_argument_is_the_whole_text() -> None:
    error = poptorch.createPoptorchError("no")
    assert error.args == ("'poptorch_py_error': no",)
    assert (error.message, error.type, error.location) == ("no", "poptorch_py_error", "")
    # A traceback's last line names the class by its module, which is PopTorch's.
    assert traceback.format_exception_only(error) == ["poptorch.poptorch_core.Error: 'poptorch_py_error': no\n"]
    for name in ("Error", "RecoverableError", "UnrecoverableError"):
        kind = getattr(poptorch, name)
        assert kind is getattr(poptorch.poptorch_core, name)
        assert issubclass(kind, poptorch.Error)
        assert not issubclass(kind, RuntimeError)  # programs tell misuse apart from what PyTorch raises


def test_each_kind_has_its_class_type_and_context_and_keeps_them_between_processes() -> None:
    assert [kind.name for kind in TestErrorType] == list(KINDS)
    for kind in TestErrorType:
        with pytest.raises(poptorch.Error) as caught:
            _throwTestError(kind)
        error = caught.value
        assert (type(error), error.type) == KINDS[kind.name]
        assert str(error).startswith(f"'{error.type}': {error.message}")
        assert str(error).endswith(error.location)
        assert "[0] throwTestError" in error.location
        assert "throwTestError" not in error.message
        for twin in (pickled(error), copy.copy(error)):
            assert (type(twin), vars(twin), str(twin)) == (type(error), vars(error), str(error))


def test_a_recoverable_error_says_what_has_to_be_done() -> None:
    with pytest.raises(poptorch.RecoverableError) as caught:
        _throwTestError(TestErrorType.PoplarRecoverableFullReset)
    assert caught.value.recovery_action == "FULL_RESET"
    assert f"{caught.value.message}. Recovery action required: FULL_RESET\n" in str(caught.value)
    assert str(poptorch.RecoverableError("device lost")).endswith("device lost. Recovery action required: IPU_RESET")


X = torch.arange(8.0).reshape(2, 4)


def lines(caplog: pytest.LogCaptureFixture, function: Any, **settings: Any) -> list[str]:
    """Compile `function` for inference and return its debug lines about ops, without the aten name in front."""
    with caplog.at_level(logging.DEBUG, logger="poptorch:cpp"):
        on_device(function, quiet(deviceIterations=2, **settings)).compile(X)
    marker = " was lowered to "
    return [text.partition(marker)[2] for text in caplog.messages if marker in text]


def in_blocks(model: Any, x: Tensor) -> Tensor:
    with poptorch.Block("A", ipu_id=0):
        x = x * 2 * x
    with poptorch.Block("B", ipu_id=1):
        return model.linear(x)


SERIAL = poptorch.SerialPhasedExecution("A", "B").setTensorsLiveness(poptorch.Liveness.OffChipAfterEachPhase)


@pytest.mark.parametrize(
    ("strategy", "mode", "place", "second"),
    [
        (poptorch.PipelinedExecution(), "Pipelined", "stage", 1),
        (poptorch.ShardedExecution("A", "B"), "Sharded", "stage", 1),
        (poptorch.ParallelPhasedExecution("A", "B"), "Phased", "phase", 1),
        (SERIAL, "Phased", "phase", 4),  # section 5.2
    ],
)
def test_each_op_has_a_line_with_name_result_and_place(caplog, strategy, mode: str, place: str, second: int) -> None:
    assert lines(caplog, in_blocks, setExecutionStrategy=strategy) == [
        f"Mul:0 [Float(1, 4), mode({mode}), ipu(0), {place}(0)]",
        f"Mul:0/1 [Float(1, 4), mode({mode}), ipu(0), {place}(0)]",
        f"linear/Gemm:0 [Float(1, 4), mode({mode}), ipu(1), {place}({second})]",
    ]


def test_element_types_are_spelled_as_in_poptorchs_graphs(caplog: pytest.LogCaptureFixture) -> None:
    found = lines(caplog, lambda m, x: ((x > 0).int() + 1, x.half()))
    assert [line.split()[1].partition("(")[0] for line in found] == ["[Bool", "[Int", "[Int", "[Half"]


def test_a_model_without_any_op_is_said_to_run_on_the_host(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="poptorch:cpp"):
        assert torch.equal(on_device(lambda m, x: x)(X), X)
    assert [(r.levelname, "host only" in r.getMessage()) for r in caplog.records] == [("INFO", True)]


def ir_of(executor: poptorch.PoplarExecutor) -> Any:
    executor.compile(X)
    return json.loads(executor._debugGetPopartIR())["maingraph"]


def test_the_ir_lists_the_ops_with_name_type_and_attributes_and_the_backward_pass() -> None:
    def forward(model: Any, x: Tensor) -> Tensor:
        with poptorch.NameScope("outer"), poptorch.Attribute(__outline={"layer": "first"}):
            x = model.linear(x)
        return torch.relu(x)

    assert ir_of(on_device(forward)) == [
        {"name": "outer/linear/Gemm", "type": "Gemm", "attributes": {"__outline": {"layer": "first"}}},
        {"name": "Relu", "type": "Relu", "attributes": {}},
    ]
    ops = ir_of(in_training(lambda m, x: poptorch.identity_loss(m.linear(x).sum(), "none")))
    types = [op["type"] for op in ops]
    assert (types.count("Gemm"), "MatMul" in types) == (1, True)


def test_an_error_of_more_than_80_line_ends_goes_to_a_file_that_can_be_written(tmp_path: Path, monkeypatch) -> None:
    """Options reference, section 12.1."""

    def refused(line_ends: int) -> poptorch.Error:
        error = poptorch.createPoptorchError("\n".join(["What broke", *map("detail {}".format, range(line_ends))]))
        with pytest.raises(poptorch.Error) as caught:
            on_device(Mock(side_effect=error))(torch.zeros(1, 4))
        return caught.value

    monkeypatch.chdir(tmp_path)
    file = tmp_path / "poptorch_error.log"
    assert refused(80).message.endswith("\ndetail 79")
    assert not file.exists()
    error = refused(81)
    assert error.message == "What broke (the whole message is in poptorch_error.log)"
    assert str(error) == f"'poptorch_py_error': {error.message}"
    written = file.read_text(encoding="utf-8")
    assert written.startswith("'poptorch_py_error': What broke\ndetail 0\n")
    assert written.endswith("detail 80\n")
    file.unlink()
    file.mkdir()
    assert refused(81).message.endswith("\ndetail 80")
