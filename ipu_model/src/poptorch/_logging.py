"""PopTorch's loggers: `poptorch::python` for its Python part, `poptorch:cpp` for compilation."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

TRACE_ALL, TRACE, DEBUG_IR = 3, 5, 8
OFF = logging.CRITICAL + 10

# The number of each level, and what it is for the Python logger; the other loggers tell the finer ones apart.
_LOG_LEVEL_MAPPING = {
    "TRACE": (0, logging.DEBUG),
    "TRACE_ALL": (0, logging.DEBUG),
    "DEBUG": (1, logging.DEBUG),
    "DEBUG_IR": (1, logging.DEBUG),
    "INFO": (2, logging.INFO),
    "WARN": (3, logging.WARNING),
    "ERR": (4, logging.ERROR),
    "OFF": (6, OFF),
}
_FINER = {"TRACE": TRACE, "TRACE_ALL": TRACE_ALL, "DEBUG_IR": DEBUG_IR}
_INTERNAL_ONLY = ("TRACE_ALL", "DEBUG_IR")
_PUBLIC_NAMES = sorted(set(_LOG_LEVEL_MAPPING) - set(_INTERNAL_ONLY))
_NUMBERED = {number: name for name, (number, _) in _LOG_LEVEL_MAPPING.items() if name not in _INTERNAL_ONLY}
_WORDS = {TRACE_ALL: "trace", TRACE: "trace", DEBUG_IR: "debug"}

logger = logging.getLogger("poptorch::python")
native_logger = logging.getLogger("poptorch:cpp")
# The engine takes PopART's place.
_backend_logger = logging.getLogger("ipu_model")


class _PoptorchFormatter(logging.Formatter):
    """Lays lines out as `[HH:MM:SS.mmm] [logger] [level] text`, the level coloured unless they go to a file."""

    RESET_COLOR = "\033[0m"
    BOLD_COLOR_SEQ = "\033[1;%dm"
    COLOR_SEQ = "\033[%dm"
    WHITE, CYAN, GREEN, YELLOW, RED = 37, 36, 32, 33, 31
    FORMATS: ClassVar[dict[int, str]] = {
        TRACE_ALL: COLOR_SEQ % WHITE,
        TRACE: COLOR_SEQ % WHITE,
        DEBUG_IR: COLOR_SEQ % CYAN,
        logging.DEBUG: COLOR_SEQ % CYAN,
        logging.INFO: COLOR_SEQ % GREEN,
        logging.WARNING: BOLD_COLOR_SEQ % YELLOW,
        logging.ERROR: BOLD_COLOR_SEQ % RED,
        logging.CRITICAL: BOLD_COLOR_SEQ % 41,  # white on red
    }

    def __init__(self, *, stream_name: str | None = None) -> None:
        super().__init__("[%(asctime)s.%(msecs)03d] [%(name)s] [%(levelword)s] %(message)s", "%H:%M:%S")
        self._stream_name = stream_name

    def outputToFile(self) -> bool:
        return self._stream_name is None or not getattr(sys, self._stream_name).isatty()

    def formatMessage(self, record: logging.LogRecord) -> str:
        word, colour = _WORDS.get(record.levelno, record.levelname.lower()), self.FORMATS.get(record.levelno)
        record.levelword = word if colour is None or self.outputToFile() else f"{colour}{word}{self.RESET_COLOR}"
        return super().formatMessage(record)


class _StreamHandler(logging.StreamHandler):  # type: ignore[type-arg]  # a class at run time only from Python 3.11 on
    """Writes to a standard stream as it is at that moment: redirections after the import are obeyed."""

    def __init__(self, stream_name: str) -> None:
        logging.Handler.__init__(self)
        self._stream_name = stream_name
        self.setFormatter(_PoptorchFormatter(stream_name=stream_name))

    @property
    def stream(self) -> Any:
        return getattr(sys, self._stream_name)


def _native_handler() -> logging.Handler:
    """Return what writes to `POPTORCH_LOG_DEST`: `stderr`, `stdout` or a file, truncated at the first line."""
    destination = os.environ.get("POPTORCH_LOG_DEST") or "stderr"
    if destination in ("stderr", "stdout"):
        return _StreamHandler(destination)
    handler = logging.FileHandler(destination, mode="w", encoding="utf-8", delay=True)
    handler.setFormatter(_PoptorchFormatter())
    return handler


class RepeatFilter(logging.Filter):
    """Drops a line after `max_repeats` sightings, saying so once (`Options.maxRepeatLogs`)."""

    def __init__(self) -> None:
        super().__init__()
        self.start()

    def start(self, max_repeats: int = 4) -> None:
        self.max_repeats = max_repeats
        self._seen: Counter[tuple[int, str]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        key = (record.levelno, record.getMessage())
        self._seen[key] += 1
        if self._seen[key] == self.max_repeats + 1:
            record.msg, record.args = "...repeated messages suppressed...", None
        return self._seen[key] <= self.max_repeats + 1


def once_logger() -> Callable[[int, str], None]:
    """Return what logs each distinct message only once; the memory belongs to whoever holds it."""
    return cache(logger.log)


repeat_filter = RepeatFilter()


def _fine_number(name: str) -> int:
    return _FINER.get(name, _LOG_LEVEL_MAPPING[name][1])


def setLogLevel(level: str | int, update_cpp: bool = True) -> None:
    """Set the lowest level that PopTorch logs; with `update_cpp`, that of compilation too.

    `TRACE`, `DEBUG`, `INFO`, `WARN`, `ERR`, `OFF`, or 0, 1, 2, 3, 4, 6 in that order; also `TRACE_ALL`,
    `DEBUG_IR`. Raises `ValueError` for anything else.
    """
    name = _NUMBERED.get(level) if isinstance(level, int) else level
    if name is None:
        accepted = ", ".join(f"{number} ({name})" for number, name in _NUMBERED.items())
        raise ValueError(f"Invalid log level integer: {level}. Use one of {accepted}.")
    if name not in _LOG_LEVEL_MAPPING:
        raise ValueError(f"Unknown log level: {level}. Valid values are: {', '.join(_PUBLIC_NAMES)}.")
    logger.setLevel(_LOG_LEVEL_MAPPING[name][1])
    if update_cpp:
        native_logger.setLevel(_fine_number(name))


def setPopartLogLevel(level: str) -> None:
    """Set the level of the backend, the logger `ipu_model`; raise `ValueError` unless it is the name of a level."""
    if level not in _LOG_LEVEL_MAPPING:
        raise ValueError(f"Level must be one of {', '.join(_PUBLIC_NAMES)}; got {level!r}.")
    _backend_logger.setLevel(_fine_number(level))


_previous_excepthook = sys.excepthook


def _excepthook(*args: Any) -> None:
    kind, error, trace = args
    if not issubclass(kind, Exception) or not logger.isEnabledFor(logging.CRITICAL):
        _previous_excepthook(kind, error, trace)
    else:
        logger.critical("%s", error, exc_info=(kind, error, trace))


_console = _StreamHandler("stderr")


def _install() -> None:
    for target, handler in ((logger, _console), (native_logger, _native_handler())):
        if not target.handlers:
            target.addHandler(handler)
    if not native_logger.filters:
        native_logger.addFilter(repeat_filter)
    setLogLevel(os.environ.get("POPTORCH_LOG_LEVEL") or "WARN")


_install()
sys.excepthook = _excepthook
# Without a usable stderr (in some notebook kernels) crashes are reported by other means.
with contextlib.suppress(AttributeError, ValueError, OSError):
    faulthandler.enable()
