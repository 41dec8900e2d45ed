"""The debug lines that tell which options a compilation was given."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from poptorch._logging import native_logger, repeat_filter
from poptorch.enums import OutputMode
from poptorch.options.structure import OptionsStructure

_ANCHOR_MODES = {
    OutputMode.All: "ALL",
    OutputMode.EveryN: "EVERYN",
    OutputMode.Final: "FINAL",
    OutputMode.Sum: "Sum",
}


def log_options(options: OptionsStructure) -> None:
    """Write one debug line for each option handed over; the output mode must be resolved."""
    repeat_filter.start(options.max_repeat_logs)
    if native_logger.isEnabledFor(logging.DEBUG):
        for line in option_lines(options.toDict()):
            native_logger.debug("%s", line)


def option_lines(flat: dict[str, Any]) -> Iterable[str]:
    """Yield the lines that describe a flattened option dict."""
    for key, value in flat.items():
        if key == "anchored_tensors":
            for long_name, _, mode, period in value.values():
                yield f"anchor ( {long_name} {_ANCHOR_MODES[OutputMode(mode)]}/{period} )"
        elif isinstance(value, dict):
            for entry, item in value.items():
                yield f"poptorch.Options set {key}[{entry}] to {_plain(item)}"
        elif isinstance(value, (list, set, tuple)):
            for item in value:
                yield f"poptorch.Options added {_plain(item)} to {key}"
        else:
            yield f"poptorch.Options set {key} to value {_plain(value)}"


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(int(value)) if isinstance(value, int) else str(value)
