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
from typing import Any

import pytest

from poptorch import _logging
from poptorch._logging import LogOnce, logger, native_logger, setLogLevel, setPopartLogLevel


@pytest.fixture(autouse=True)
def _levels_restored() -> Iterator[None]:
    levels = logger.level, native_logger.level, logging.getLogger("ipu_model").level
    _logging.repeat_filter.start(4)
    yield
    for target, level in zip((logger, native_logger, logging.getLogger("ipu_model")), levels, strict=True):
        target.setLevel(level)


def test_the_python_logger_has_poptorchs_name() -> None:
    assert logger is logging.getLogger("poptorch::python")


@pytest.mark.parametrize(("target", "name"), [(logger, "poptorch::python"), (native_logger, "poptorch:cpp")])
@pytest.mark.parametrize(
    ("level", "word"),
    [
        (_logging.TRACE, "trace"),
        (logging.DEBUG, "debug"),
        (logging.INFO, "info"),
        (logging.WARNING, "warning"),
        (logging.ERROR, "error"),
        (logging.CRITICAL, "critical"),
    ],
)
def test_a_line_on_stderr(
    target: logging.Logger, name: str, level: int, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    setLogLevel("TRACE")
    logger.setLevel(_logging.TRACE)
    target.log(level, "text %d", 3)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(rf"\[\d\d:\d\d:\d\d\.\d\d\d\] \[{name}\] \[{word}\] text 3\n", captured.err)


def test_levels_are_coloured_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        monkeypatch.setattr(sys, "stderr", stream)
        logger.warning("text")
    assert "\033[" in terminal.getvalue()
    assert "\033[" not in file.getvalue()


LEVELS: list[tuple[str | int, int]] = [
    ("TRACE_ALL", _logging.TRACE_ALL),
    ("TRACE", _logging.TRACE),
    ("DEBUG_IR", _logging.DEBUG_IR),
    ("DEBUG", logging.DEBUG),
    ("INFO", logging.INFO),
    ("WARN", logging.WARNING),
    ("ERR", logging.ERROR),
    ("OFF", _logging.OFF),
    (0, _logging.TRACE),
    (1, logging.DEBUG),
    (2, logging.INFO),
    (3, logging.WARNING),
    (4, logging.ERROR),
    (6, _logging.OFF),
]


@pytest.mark.parametrize(("level", "number"), LEVELS)
def test_levels_by_name_and_by_number(level: str | int, number: int) -> None:
    setLogLevel(level)
    assert native_logger.level == number
    assert logger.level == max(number, logging.DEBUG)


def test_the_level_of_what_compilation_says_can_stay_as_it_is() -> None:
    setLogLevel("ERR")
    setLogLevel("INFO", update_cpp=False)
    assert (logger.level, native_logger.level) == (logging.INFO, logging.ERROR)


def test_the_levels_are_ordered_by_how_much_they_show() -> None:
    numbers = [number for level, number in LEVELS if isinstance(level, str)]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("level", [5, 7, -1])
def test_other_numbers_are_refused(level: int) -> None:
    with pytest.raises(ValueError, match="Invalid log level integer"):
        setLogLevel(level)


def test_other_names_are_refused_with_the_public_ones_in_alphabetical_order() -> None:
    with pytest.raises(ValueError, match=r"Unknown log level: LOUD.*DEBUG, ERR, INFO, OFF, TRACE, WARN"):
        setLogLevel("LOUD")


def test_the_backend_level_goes_to_the_engine() -> None:
    setPopartLogLevel("DEBUG")
    assert logging.getLogger("ipu_model").level == logging.DEBUG


def test_the_backend_knows_the_levels_for_insiders() -> None:
    setPopartLogLevel("TRACE_ALL")
    assert logging.getLogger("ipu_model").level == _logging.TRACE_ALL


@pytest.mark.parametrize("level", [1, "LOUD", None])
def test_the_backend_level_is_a_name(level: Any) -> None:
    with pytest.raises(ValueError, match="Level must be one of"):
        setPopartLogLevel(level)


def test_off_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    setLogLevel("OFF")
    logger.critical("text")
    assert capsys.readouterr().err == ""


def test_log_once_says_each_message_once(capsys: pytest.CaptureFixture[str]) -> None:
    once = LogOnce()
    for message in ("a", "b", "a", "a"):
        once(logging.WARNING, message)
    LogOnce()(logging.WARNING, "a")
    assert [line[-1] for line in capsys.readouterr().err.splitlines()] == ["a", "b", "a"]


def test_repeated_native_lines_are_suppressed_after_the_given_number(capsys: pytest.CaptureFixture[str]) -> None:
    _logging.repeat_filter.start(2)
    for _ in range(5):
        native_logger.warning("again %d", 1)
    native_logger.warning("again %d", 2)
    lines = [line.split("] ", 3)[-1] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["again 1", "again 1", "...repeated messages suppressed...", "again 2"]


def test_the_environment_sets_the_level(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, level in (("ERR", logging.ERROR), ("", logging.WARNING)):
        monkeypatch.setenv("POPTORCH_LOG_LEVEL", value)
        _logging._install()
        assert logger.level == level


def test_an_unknown_level_in_the_environment_is_an_error_at_import() -> None:
    result = subprocess.run(
        [sys.executable, "-c", "import poptorch._logging"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "POPTORCH_LOG_LEVEL": "LOUD"},
        timeout=300,
    )
    assert result.returncode == 1
    assert "ValueError: Unknown log level: LOUD" in result.stderr


def test_importing_makes_forks_safe_for_rdma() -> None:
    """Options reference, section 11: set to 1 unless the environment has a value."""
    assert "RDMAV_FORK_SAFE" in os.environ


@pytest.mark.parametrize("destination", ["stdout", "stderr"])
def test_native_lines_can_go_to_a_standard_stream(
    destination: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POPTORCH_LOG_DEST", destination)
    _logging._NativeHandler().emit(_record("text"))
    assert getattr(capsys.readouterr(), destination[3:]).endswith("[poptorch:cpp] [warning] text\n")


def test_native_lines_can_go_to_a_file_which_is_truncated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "native.log"
    path.write_text("old content\n")
    monkeypatch.setenv("POPTORCH_LOG_DEST", str(path))
    handler = _logging._NativeHandler()
    handler.emit(_record("first"))
    handler.emit(_record("second"))
    assert [line.split("] ", 1)[1] for line in path.read_text().splitlines()] == [
        "[poptorch:cpp] [warning] first",
        "[poptorch:cpp] [warning] second",
    ]
    assert capsys.readouterr().err == ""
    handler.close()


def _record(text: str) -> logging.LogRecord:
    return logging.LogRecord("poptorch:cpp", logging.WARNING, __file__, 1, text, None, None)


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
