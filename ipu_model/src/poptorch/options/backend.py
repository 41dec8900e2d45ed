"""What the backend is told under its own names (`Options._Popart`): which settings there are, and a typed view of them.

No other module reads the raw settings. What a program leaves out has the backend's default, which stands here. Keys and
types of values are checked when a model is compiled, as in PopTorch: the Python type of a value selects the table in
which its key is looked up; `data/popart_keys.json` has the tables.
"""

from __future__ import annotations

import difflib
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from ipu_model.compute.gradients import LossScalingSettings
from poptorch._impl import createPoptorchError
from poptorch._logging import logger

ENGINE_OPTIONS = "POPLAR_ENGINE_OPTIONS"
LOSS_SCALING = "automaticLossScalingSettings"
T = TypeVar("T")


class _Setting(Generic[T]):
    def __init__(self, key: str, read: Callable[[Any], T], default: object = None) -> None:
        self._key, self._read, self._default = key, read, default

    def __get__(self, settings: BackendSettings, owner: type) -> T:
        return self._read(settings.raw.get(self._key, self._default))


@dataclass(frozen=True)
class BackendSettings:
    """A typed view of the settings that have an effect here; `raw` holds the settings under the backend's names."""

    raw: Mapping[str, Any]

    synthetic_data = _Setting("syntheticDataMode", bool)
    counts_cycles = _Setting("instrumentWithHardwareCycleCounter", bool)
    stochastic_rounding = _Setting("enableStochasticRounding", bool)
    floating_point_exceptions = _Setting("enableFloatingPointChecks", bool)
    stable_norm = _Setting("enableStableNorm", bool)
    adapts_loss_scaling = _Setting(f"{LOSS_SCALING}.enabled", bool)
    # Whether a pipelined strategy may run as a pipeline.
    pipelining = _Setting("enablePipelining", bool, default=True)
    # Whether products of float16 values accumulate in float16.
    half_matmuls = _Setting("partialsTypeMatMuls", lambda partials: bool(partials == "half"))
    half_convolutions = _Setting(
        "convolutionOptions", lambda chosen: bool(chosen.get("partialsType") == "half"), default={}
    )
    # Names of the buffers that may be uploaded on their own.
    updatable_buffers = _Setting("updatableNamedBuffers", lambda names: tuple(names or ()))
    # The number of the recomputation mode that was set, if one was.
    recomputation = _Setting("autoRecomputation", lambda chosen: None if chosen is None else int(chosen))

    @property
    def cache_folder(self) -> str | None:
        folder = self.raw.get("cachePath")
        return folder if folder and self.raw.get("enableEngineCaching") else None

    @property
    def explicit_io(self) -> bool:
        """Whether transfers and loops are explicit in the program, so that they can overlap."""
        return bool(self.raw.get("useHostCopyOps", True)) and bool(self.raw.get("enableExplicitMainLoops", True))

    @property
    def prefetch_depth(self) -> int:
        """How many micro-batches the host prepares ahead: 1 by default, 0 without prefetching."""
        if not self.raw.get("enablePrefetchDatastreams", True):
            return 0
        return int(self.raw.get("defaultBufferingDepth", self.raw.get("defaultPrefetchBufferingDepth", 1)))

    @property
    def loss_scaling(self) -> LossScalingSettings:
        usual = LossScalingSettings()
        edge = self.raw.get(f"{LOSS_SCALING}.binEdgeLocation", usual.bin_edge)
        threshold = self.raw.get(f"{LOSS_SCALING}.thresholdUpperCountProportion", usual.threshold)
        period = self.raw.get(f"{LOSS_SCALING}.updatePeriod", usual.period)
        return LossScalingSettings(float(edge), float(threshold), int(period))

    @property
    def engine_options(self) -> EngineOptions:
        return read_engine_options(self.raw.get("engineOptions", {}))


@dataclass(frozen=True)
class EngineOptions:
    """The Poplar engine's options that have an effect here: reports, with `execution` including the timeline.

    Each model gets a folder in `directory`, unless that is `from_environment`. With `allow_out_of_memory`, a program
    that does not fit leaves its report first, as Poplar leaves a profile.
    """

    report: bool = False
    execution: bool = False
    directory: str = "."
    from_environment: bool = False
    allow_out_of_memory: bool = True


def read_engine_options(from_api: Mapping[str, Any]) -> EngineOptions:
    """Return the options that apply: those of `POPLAR_ENGINE_OPTIONS`, then those that the program set.

    `debug.allowOutOfMemory` is true unless it is switched off, as in Poplar since SDK 2.1.
    """
    environment = engine_options_of_environment()
    options = {**from_api, **environment}
    for name in options.keys() - key_tables().engine:
        _warn_of_unknown(name)
    everything = _switch(options, "autoReport.all", False)
    graph = _switch(options, "autoReport.outputGraphProfile", everything)
    execution = _switch(options, "autoReport.outputExecutionProfile", everything)
    directory = options.get("autoReport.directory", ".")
    if not isinstance(directory, str) or not directory or "\0" in directory:
        raise createPoptorchError(f"The engine option autoReport.directory must name a folder, not {directory!r}.")
    return EngineOptions(
        report=graph or execution,
        execution=execution,
        directory=directory,
        from_environment="autoReport.directory" in environment,
        allow_out_of_memory=_switch(options, "debug.allowOutOfMemory", True),
    )


def _warn_of_unknown(name: str) -> None:
    near = difflib.get_close_matches(str(name), sorted(key_tables().engine), n=1, cutoff=0.8)
    if near:
        raise createPoptorchError(f"Unrecognised engine option {name!r}. Did you mean {near[0]}?")
    logger.warning("The engine option %r is not known to the IPU Model, and has no effect here.", name)


def engine_options_of_environment() -> dict[str, object]:
    text = os.environ.get(ENGINE_OPTIONS)
    if not text:
        return {}
    try:
        options = json.loads(text)
    except (ValueError, RecursionError) as error:  # bad syntax, a number with thousands of digits, or too deep nesting
        raise createPoptorchError(f"{ENGINE_OPTIONS} is not valid JSON: {error}.") from error
    if not isinstance(options, dict):
        raise createPoptorchError(f'{ENGINE_OPTIONS} must be a JSON object, for example {{"autoReport.all":"true"}}.')
    return options


def _switch(options: Mapping[str, object], name: str, default: bool) -> bool:
    value = options.get(name, default)
    known = {"true": True, "false": False, True: True, False: False}
    if not isinstance(value, (str, bool)) or value not in known:
        raise createPoptorchError(f'The engine option {name} must be "true" or "false", not {value!r}.')
    return known[value]


UINT64_MAX = 2**64 - 1


class _Table(NamedTuple):
    """A table of keys: the types that select it, its name in error messages, and what a value for it is."""

    key: str
    types: tuple[type, ...]
    name: str
    value: str


# bool comes before int, of which it is a subclass.
_TABLES = (
    _Table("bool", (bool,), "bool", "a bool"),
    _Table("uint64", (int,), "uint64", "an int from 0 upwards"),
    _Table("float", (float,), "floating point", "a float, for example 10.0"),
    _Table("string", (str,), "string", "a str"),
    _Table("container", (set, list, tuple), "set / vector", "a list, set or tuple of str or int"),
    _Table("map", (dict,), "map", "a dict with str or int values"),
)


class KeyTables(msgspec.Struct, frozen=True):
    """The keys of each table, those with a form of their own, and the members, from 0 on, of enumerations.

    `engine` are those of Poplar's engine that programs and documents name; only few of them have an effect here.
    """

    keys: dict[str, frozenset[str]]
    structured: frozenset[str]
    enumerations: dict[str, tuple[str, ...]]
    enum_of_key: dict[str, str]
    engine: frozenset[str]

    @property
    def members(self) -> dict[str, tuple[str, ...]]:
        return {key: self.enumerations[name] for key, name in self.enum_of_key.items()}


@cache
def key_tables() -> KeyTables:
    return msgspec.json.decode((resources.files("poptorch") / "data" / "popart_keys.json").read_bytes(), type=KeyTables)


def validate_options(options: Mapping[str, object]) -> None:
    for key, value in options.items():
        if key in key_tables().structured:
            continue
        table = next((table for table in _TABLES if isinstance(value, table.types)), None)
        if table is None:
            raise createPoptorchError(f"Unknown value type {type(value).__name__} for option {key}. {_what_works(key)}")
        if key not in key_tables().keys[table.key]:
            raise createPoptorchError(f"Unknown {table.name} option {key}. {_what_works(key)}")
        _check_range(key, value)
    if "patterns" in options and "patterns_level" not in options:
        raise createPoptorchError(
            "_Popart option patterns needs patterns_level too: use _Popart.setPatterns(patterns, level)."
        )
    if "logDir" in options:
        logger.warning("_Popart option logDir is ignored: use poptorch.Options.logDir instead.")


def _check_range(key: str, value: object) -> None:
    if isinstance(value, int):
        _check_int(key, value)
    elif isinstance(value, float) and not math.isfinite(value):
        raise createPoptorchError(f"Value {value} of option {key} is out of range: it must be finite.")
    elif isinstance(value, (set, list, tuple, dict)):
        for element in value.values() if isinstance(value, dict) else value:
            if not isinstance(element, (str, int)):
                unknown = f"Unknown value type {type(element).__name__} in option {key}"
                raise createPoptorchError(f"{unknown}: its elements are str or int.")
            if isinstance(element, int) and key in key_tables().members:
                _check_int(key, element)


def _check_int(key: str, value: int) -> None:
    if not 0 <= value <= UINT64_MAX:
        raise createPoptorchError(f"Value {value} of option {key} is out of range: it must be from 0 to 2**64 - 1.")
    members = key_tables().members.get(key)
    if members is not None and value >= len(members):
        allowed = ", ".join(f"{number} ({name})" for number, name in enumerate(members))
        raise createPoptorchError(f"Value {int(value)} of option {key} is out of range: it must be one of {allowed}.")


def _what_works(key: str) -> str:
    for table in _TABLES:
        if key in key_tables().keys[table.key]:
            return f"{key} takes {table.value}."
    near = difflib.get_close_matches(str(key), sorted(set().union(*key_tables().keys.values())), n=1)
    return f"Did you mean {near[0]}?" if near else "No backend option has this name."
