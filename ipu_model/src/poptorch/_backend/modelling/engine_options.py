"""Options of the Poplar engine that have an effect here: reports, and what happens when memory runs out."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from poptorch._impl import createPoptorchError

VARIABLE = "POPLAR_ENGINE_OPTIONS"


@dataclass(frozen=True)
class EngineOptions:
    """`report` whether a report is written, to `directory`; `execution` whether it holds the timeline.

    `from_environment` tells that the environment named the directory: it is meant for the report itself then, and
    otherwise for a folder for each model. `allow_out_of_memory` lets a program that does not fit be compiled all
    the same.
    """

    report: bool = False
    execution: bool = False
    directory: str = "."
    from_environment: bool = False
    allow_out_of_memory: bool = False


def read_engine_options(from_api: Mapping[str, Any]) -> EngineOptions:
    """Return the options that apply: those of `POPLAR_ENGINE_OPTIONS`, then those that the program set.

    `autoReport.all` is the default of `autoReport.outputGraphProfile` and `autoReport.outputExecutionProfile`;
    whoever profiles may run out of memory unless `debug.allowOutOfMemory` says otherwise.

    Raises:
        Error: the variable is not a JSON object, a switch is neither "true" nor "false", or the directory no text.
    """
    environment = engine_options_of_environment()
    found = {**from_api, **environment}
    everything = _switch(found, "autoReport.all", False)
    graph = _switch(found, "autoReport.outputGraphProfile", everything)
    execution = _switch(found, "autoReport.outputExecutionProfile", everything)
    report = graph or execution
    return EngineOptions(
        report=report,
        execution=execution,
        directory=_directory(found.get("autoReport.directory", ".")),
        from_environment="autoReport.directory" in environment,
        allow_out_of_memory=_switch(found, "debug.allowOutOfMemory", report),
    )


def engine_options_of_environment() -> dict[str, object]:
    """Return the object in `POPLAR_ENGINE_OPTIONS`, empty if the variable is not set.

    Raises:
        Error: it is not a JSON object.
    """
    text = os.environ.get("POPLAR_ENGINE_OPTIONS")
    if not text:
        return {}
    try:
        options = json.loads(text)
    except (ValueError, RecursionError) as error:  # the syntax, a number of thousands of digits, or endless nesting
        raise createPoptorchError(f"{VARIABLE} is not valid JSON: {error}.") from error
    if not isinstance(options, dict):
        raise createPoptorchError(f'{VARIABLE} must be a JSON object, for example {{"autoReport.all":"true"}}.')
    return options


def _directory(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise createPoptorchError(f"The engine option autoReport.directory must name a folder, not {value!r}.")
    return value


def _switch(options: Mapping[str, object], name: str, default: bool) -> bool:
    value = options.get(name, default)
    known = {"true": True, "false": False, True: True, False: False}
    if not isinstance(value, (str, bool)) or value not in known:
        raise createPoptorchError(f'The engine option {name} must be "true" or "false", not {value!r}.')
    return known[value]
