"""PopTorch's loggers: `poptorch::python` for its Python part, `poptorch:cpp` for what compilation says."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import sys
from collections import Counter
from types import TracebackType
from typing import TextIO

TRACE_ALL, TRACE, DEBUG_IR = 3, 5, 8
OFF = logging.CRITICAL + 10

_LEVELS = {
    "TRACE_ALL": TRACE_ALL,
    "TRACE": TRACE,
    "DEBUG_IR": DEBUG_IR,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERR": logging.ERROR,
    "OFF": OFF,
}
_PUBLIC_NAMES = ("DEBUG", "ERR", "INFO", "OFF", "TRACE", "WARN")
_NUMBERED = {0: "TRACE", 1: "DEBUG", 2: "INFO", 3: "WARN", 4: "ERR", 6: "OFF"}
_WORDS = {
    TRACE_ALL: "trace",
    TRACE: "trace",
    DEBUG_IR: "debug",
    logging.DEBUG: "debug",
    logging.INFO: "info",
    logging.WARNING: "warning",
    logging.ERROR: "error",
    logging.CRITICAL: "critical",
}
_COLOURS = {
    "trace": "\033[37m",
    "debug": "\033[36m",
    "info": "\033[32m",
    "warning": "\033[33m\033[1m",
    "error": "\033[31m\033[1m",
    "critical": "\033[1m\033[41m",
}

logger = logging.getLogger("poptorch::python")
native_logger = logging.getLogger("poptorch:cpp")
# The engine stands where PopART stood behind the original.
_backend_logger = logging.getLogger("ipu_model")


class _Formatter(logging.Formatter):
    """Lays lines out as `[HH:MM:SS.mmm] [logger] [level] text`."""

    def __init__(self) -> None:
        super().__init__("[%(asctime)s.%(msecs)03d] [%(name)s] [%(levelword)s] %(message)s", "%H:%M:%S")
        self.coloured = False

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Put the lower-case level word into the line, coloured if asked for."""
        word = _WORDS.get(record.levelno, record.levelname.lower())
        record.levelword = f"{_COLOURS[word]}{word}\033[0m" if self.coloured and word in _COLOURS else word
        return super().formatMessage(record)


class _StreamHandler(logging.Handler):
    """Writes to a standard stream as it is at that moment: redirections after the import are obeyed."""

    def __init__(self, stream_name: str) -> None:
        super().__init__()
        self._stream_name = stream_name
        self._formatter = _Formatter()
        self.setFormatter(self._formatter)

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        try:
            stream: TextIO = getattr(sys, self._stream_name)
            self._formatter.coloured = stream.isatty()
            stream.write(self.format(record) + "\n")
            stream.flush()
        except Exception:
            self.handleError(record)


class _NativeHandler(logging.Handler):
    """Opens `POPTORCH_LOG_DEST` (`stderr`, `stdout` or a file, truncated) at the first line."""

    def __init__(self) -> None:
        super().__init__()
        self._target: logging.Handler | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Pass the line on to the destination."""
        if self._target is None:
            destination = os.environ.get("POPTORCH_LOG_DEST") or "stderr"
            if destination in ("stderr", "stdout"):
                self._target = _StreamHandler(destination)
            else:
                self._target = logging.FileHandler(destination, mode="w", encoding="utf-8")
                self._target.setFormatter(_Formatter())
        self._target.emit(record)

    def close(self) -> None:
        """Close the destination, too."""
        if self._target is not None:
            self._target.close()
        super().close()


class RepeatFilter(logging.Filter):
    """Drops a line after `max_repeats` sightings, saying so once (`Options.maxRepeatLogs`)."""

    def __init__(self, max_repeats: int = 4) -> None:
        super().__init__()
        self.start(max_repeats)

    def start(self, max_repeats: int) -> None:
        """Count afresh, as every compilation does."""
        self.max_repeats = max_repeats
        self._seen: Counter[tuple[int, str]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to show this line; the first line too many is replaced by a notice."""
        key = (record.levelno, record.getMessage())
        self._seen[key] += 1
        if self._seen[key] == self.max_repeats + 1:
            record.msg, record.args = "...repeated messages suppressed...", None
        return self._seen[key] <= self.max_repeats + 1


class LogOnce:
    """Logs each distinct message only once; the memory belongs to whoever owns this object."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, level: int, message: str) -> None:
        """Log `message` on the Python logger at `level` (a `logging` level) unless it was said before."""
        if message not in self._said:
            self._said.add(message)
            logger.log(level, message)


repeat_filter = RepeatFilter()


def _level_number(level: str | int) -> int:
    if isinstance(level, int):
        if level not in _NUMBERED:
            accepted = ", ".join(f"{number} ({name})" for number, name in _NUMBERED.items())
            raise ValueError(f"Invalid log level integer: {level}. Use one of {accepted}.")
        return _LEVELS[_NUMBERED[level]]
    if level not in _LEVELS:
        raise ValueError(f"Unknown log level: {level}. Valid values are: {', '.join(_PUBLIC_NAMES)}.")
    return _LEVELS[level]


def setLogLevel(level: str | int) -> None:
    """Set the level from which on PopTorch logs.

    `TRACE`, `DEBUG`, `INFO`, `WARN`, `ERR`, `OFF`, or 0, 1, 2, 3, 4, 6 in that order; also `TRACE_ALL`,
    `DEBUG_IR`. Raises `ValueError` for anything else.
    """
    number = _level_number(level)
    logger.setLevel(number)
    native_logger.setLevel(number)


def setPopartLogLevel(level: str) -> None:
    """Set the level of the backend, the logger `ipu_model`; raise `ValueError` unless it is the name of a level."""
    if level not in _LEVELS:
        raise ValueError(f"Level must be one of {', '.join(_PUBLIC_NAMES)}; got {level!r}.")
    _backend_logger.setLevel(_LEVELS[level])


def install_excepthook() -> None:
    """Make uncaught exceptions appear as critical lines of the Python logger; an interrupt stays as it is."""
    previous = sys.excepthook

    def log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, Exception) or not logger.isEnabledFor(logging.CRITICAL):
            previous(kind, error, trace)
        else:
            logger.critical("%s", error, exc_info=(kind, error, trace))

    sys.excepthook = log_uncaught


def _install() -> None:
    for target, handler in ((logger, _StreamHandler("stderr")), (native_logger, _NativeHandler())):
        if not target.handlers:
            target.addHandler(handler)
    if not native_logger.filters:
        native_logger.addFilter(repeat_filter)
    setLogLevel(os.environ.get("POPTORCH_LOG_LEVEL") or "WARN")


_install()
install_excepthook()
# Without a usable stderr (in some notebook kernels) crashes are reported by other means.
with contextlib.suppress(AttributeError, ValueError, OSError):
    faulthandler.enable()
