"""What the backend receives when a model is compiled: the flattened options, and settings derived from them.

Flattened options are checked against the backend's key tables, as PopTorch does at compile time: the Python type of a
value selects the table its key is looked up in; `data/popart_keys.json` has the tables.
"""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from poptorch._impl import createPoptorchError
from poptorch._logging import logger, native_logger, repeat_filter
from poptorch.enums import OutputMode
from poptorch.options.options import Options
from poptorch.options.strategies import total_phases

_UINT64_MAX = 2**64 - 1

# What the table is called in error messages, and how a value for it is described.
_TABLE_NAMES = {
    "bool": ("bool", "a bool"),
    "uint64": ("uint64", "an int from 0 upwards"),
    "float": ("floating point", "a float, for example 10.0"),
    "string": ("string", "a str"),
    "container": ("set / vector", "a list, set or tuple of str or int"),
    "map": ("map", "a dict with str or int values"),
}
_ANCHOR_MODES = {
    OutputMode.All: "ALL",
    OutputMode.EveryN: "EVERYN",
    OutputMode.Final: "FINAL",
    OutputMode.Sum: "Sum",
}
# PopART's enum values (options reference, section 9).
_RECOMPUTE_PIPELINE = 3
_VIRTUAL_GRAPHS_MANUAL = 1
_VIRTUAL_GRAPHS_EXECUTION_PHASES = 3
_SCHEDULE_SCHEDULER = 0

_PIPELINED, _PHASED = 0, 2
_RETAIN_DEBUG = "debug.retainDebugInformation"


def log_options(options: Options) -> None:
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
        elif key == "compilation_progress_bar_fn":
            continue
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


@dataclass(frozen=True)
class KeyTables:
    """The keys of each table, the keys with a form of their own, and the member names of enum-valued keys.

    `enumerations` has PopART's enumerations by their own names, with their members from value 0 on.
    """

    keys: Mapping[str, frozenset[str]]
    structured: frozenset[str]
    members: Mapping[str, tuple[str, ...]]
    enumerations: Mapping[str, tuple[str, ...]]

    def table_of(self, key: str) -> str | None:
        """Return the table that holds `key`, if one does."""
        return next((table for table, keys in self.keys.items() if key in keys), None)


@lru_cache(maxsize=1)
def key_tables() -> KeyTables:
    """Read the key tables that come with the package."""
    data = json.loads((resources.files("poptorch") / "data" / "popart_keys.json").read_text(encoding="utf-8"))
    enumerations = {name: tuple(members) for name, members in data["enums"].items()}
    return KeyTables(
        keys={table: frozenset(data["popart"][table] + data["poptorch"][table]) for table in _TABLE_NAMES},
        structured=frozenset(data["structured"]["keys"]),
        members={key: enumerations[enum] for key, enum in data["enum_of_key"].items()},
        enumerations=enumerations,
    )


def validate_options(options: Mapping[str, object]) -> None:
    """Check a flattened option dict; raise `poptorch.Error` for unknown keys, wrong types and enum ranges."""
    for key, value in options.items():
        if key not in key_tables().structured:
            _check_entry(key, value)
    if "patterns" in options and "patterns_level" not in options:
        raise createPoptorchError(
            "_Popart option patterns needs patterns_level too: use _Popart.setPatterns(patterns, level)."
        )
    if "logDir" in options:
        logger.warning("_Popart option logDir is ignored: use poptorch.Options.logDir instead.")


def _check_entry(key: str, value: object) -> None:
    table = _table_for(value)
    if table is None:
        raise createPoptorchError(f"Unknown value type {type(value).__name__} for option {key}. {_what_works(key)}")
    if key not in key_tables().keys[table]:
        raise createPoptorchError(f"Unknown {_TABLE_NAMES[table][0]} option {key}. {_what_works(key)}")
    if isinstance(value, int):
        _check_int(key, value)
    elif isinstance(value, (set, list, tuple)):
        _check_elements(key, value)
    elif isinstance(value, dict):
        _check_elements(key, value.values())


def _table_for(value: object) -> str | None:
    # bool comes before int, of which it is a subclass.
    for types, table in (
        ((bool,), "bool"),
        ((float,), "float"),
        ((int,), "uint64"),
        ((str,), "string"),
        ((set, list, tuple), "container"),
        ((dict,), "map"),
    ):
        if isinstance(value, types):
            return table
    return None


def _check_int(key: str, value: int) -> None:
    if not 0 <= value <= _UINT64_MAX:
        raise createPoptorchError(f"Value {value} of option {key} is out of range: it must be from 0 to 2**64 - 1.")
    members = key_tables().members.get(key)
    if members is not None and value >= len(members):
        allowed = ", ".join(f"{number} ({name})" for number, name in enumerate(members))
        raise createPoptorchError(f"Value {int(value)} of option {key} is out of range: it must be one of {allowed}.")


def _check_elements(key: str, elements: Iterable[object]) -> None:
    for element in elements:
        if not isinstance(element, (str, int)):
            raise createPoptorchError(
                f"Unknown value type {type(element).__name__} in option {key}: its elements are str or int."
            )
        if isinstance(element, int) and key in key_tables().members:
            _check_int(key, element)


def _what_works(key: str) -> str:
    table = key_tables().table_of(key)
    if table is not None:
        return f"{key} takes {_TABLE_NAMES[table][1]}."
    every_key = sorted(set().union(*key_tables().keys.values()))
    near = difflib.get_close_matches(key, every_key, n=1)
    return f"Did you mean {near[0]}?" if near else "No backend option has this name."


@dataclass(frozen=True)
class TracedProgram:
    """The facts about a traced model that derived settings need; `ipus` is the number that one replica's ops use."""

    ipus: int
    gradient_clipping: bool = False
    overlapped_io: bool = False


def derived_settings(options: Options, program: TracedProgram) -> dict[str, Any]:
    """Return the derived settings as they take effect, logging each one.

    A setting that the user forced keeps the user's value; a warning is logged if the derived value differs.
    """
    user = options._backend.raw
    settings = {name: _settle(name, value, user) for name, value in _derive(options, program).items()}
    engine_options = user.get("engineOptions", {})
    retain = _settle(
        f"engineOptions[{_RETAIN_DEBUG}]",
        "false",
        {f"engineOptions[{name}]": value for name, value in engine_options.items()},
    )
    settings["engineOptions"] = {**engine_options, _RETAIN_DEBUG: retain}
    return settings


def _settle(name: str, derived: bool | int | str, user: Mapping[str, Any]) -> Any:
    forced = user.get(name, derived)
    shown = int(derived) if isinstance(derived, bool) else derived
    if forced == derived:
        native_logger.debug("%s set to value %s", name, shown)
    else:
        native_logger.warning("%s forced by the user to %s: the value %s is ignored", name, forced, shown)
    return forced


def _derive(options: Options, program: TracedProgram) -> dict[str, bool | int]:
    emitted = options._execution_strategy.backendOptions()
    pipelined = emitted["execution_mode"] == _PIPELINED and program.ipus > 1
    settings: dict[str, bool | int] = {
        "enablePipelining": pipelined,
        "enableReplicatedGraphs": options.replication_factor > 1,
        "enableGradientAccumulation": options.Training.gradient_accumulation > 1,
        "constantWeights": False,
        "enableLoadAndOffloadRNGState": True,
    }
    if pipelined:
        settings["autoRecomputation"] = _RECOMPUTE_PIPELINE
        if program.gradient_clipping:
            settings["accumulateOuterFragmentSettings.schedule"] = _SCHEDULE_SCHEDULER
    if emitted["execution_mode"] == _PHASED:
        settings["virtualGraphMode"] = _VIRTUAL_GRAPHS_EXECUTION_PHASES
        settings["executionPhaseSettings.stages"] = 1 if emitted["serial_phases_execution"] else 2
        settings["executionPhaseSettings.phases"] = total_phases(options._execution_strategy)
    elif program.ipus > 1:
        settings["virtualGraphMode"] = _VIRTUAL_GRAPHS_MANUAL
    if options.Distributed.numProcesses > 1:
        settings["enableDistributedReplicatedGraphs"] = True
        settings["globalReplicationFactor"] = options.replication_factor * options.Distributed.numProcesses
        settings["globalReplicaOffset"] = options.replication_factor * options.Distributed.processId
    if program.overlapped_io:
        settings["useHostCopyOps"] = True
        settings["enableExplicitMainLoops"] = True
    return settings
