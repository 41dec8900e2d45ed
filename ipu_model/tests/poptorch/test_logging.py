"""PopTorch's loggers (options reference, sections 11 and 12.2; execution reference, section 14)."""

from __future__ import annotations

import io
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from poptorch import _logging
from poptorch._logging import LogOnce, logger, native_logger, setLogLevel, setPopartLogLevel

ENGINES = logging.getLogger("ipu_model")
WORDS = ["trace", "debug", "info", "warning", "error", "critical"]
# By how much they show, those for insiders included.
LEVELS = {
    "TRACE_ALL": _logging.TRACE_ALL, "TRACE": _logging.TRACE, "DEBUG_IR": _logging.DEBUG_IR, "DEBUG": logging.DEBUG,
    "INFO": logging.INFO, "WARN": logging.WARNING, "ERR": logging.ERROR, "OFF": _logging.OFF,
}  # fmt: skip
NUMBERS = {
    0: _logging.TRACE, 1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR, 6: _logging.OFF
}  # fmt: skip


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
    for level, number in (LEVELS | NUMBERS).items():
        setLogLevel(level)
        assert native_logger.level == number
        assert logger.level == max(number, logging.DEBUG)
    assert sorted(set(LEVELS.values())) == list(LEVELS.values())
    setLogLevel("ERR")
    setLogLevel("INFO", update_cpp=False)  # the level of what compilation says stays
    assert (logger.level, native_logger.level) == (logging.INFO, logging.ERROR)


@pytest.mark.parametrize("level", ["DEBUG", "TRACE_ALL"])
def test_the_backend_level_goes_to_the_engine(level: str) -> None:
    setPopartLogLevel(level)
    assert ENGINES.level == LEVELS[level]


def test_log_once_says_each_message_once(capsys: pytest.CaptureFixture[str]) -> None:
    once = LogOnce()
    for message in ("a", "b", "a", "a"):
        once(logging.WARNING, message)
    LogOnce()(logging.WARNING, "a")
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
        self,
        destination: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        path = tmp_path / destination
        path.write_text("old content\n")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("POPTORCH_LOG_DEST", destination)
        handler = _logging._NativeHandler()
        for text in ("first", "second"):
            handler.emit(logging.LogRecord("poptorch:cpp", logging.WARNING, __file__, 1, text, None, None))
        handler.close()
        shown = capsys.readouterr()
        written = {"stdout": shown.out, "stderr": shown.err, "native.log": path.read_text()}
        lines = [line.split("] ", 1)[1] for line in written.pop(destination).splitlines()]
        assert lines == ["[poptorch:cpp] [warning] first", "[poptorch:cpp] [warning] second"]
        assert shown.err == "" or destination == "stderr"


@pytest.mark.parametrize(
    ("level", "error", "hooked"),
    [
        ("WARN", ZeroDivisionError("divided"), True),
        ("OFF", ZeroDivisionError("divided"), False),
        ("WARN", KeyboardInterrupt(), False),
    ],
)
def test_uncaught_exceptions_become_critical_lines(
    level: str, error: BaseException, hooked: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    previous: list[object] = []
    monkeypatch.setattr(_logging, "_previous_excepthook", lambda *args: previous.append(args))
    setLogLevel(level)
    _logging._excepthook(type(error), error, None)
    assert previous == ([] if hooked else [(type(error), error, None)])
    shown = capsys.readouterr().err
    assert ("[poptorch::python] [critical] divided\n" in shown) == hooked
    assert ("ZeroDivisionError: divided" in shown) == hooked
