"""What a compilation tells the backend: the flattened options in the log, and the settings derived from them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from poptorch._logging import native_logger, repeat_filter
from poptorch.enums import OutputMode
from poptorch.options.options import Options
from poptorch.options.strategies import _IPhasedExecution, runs_stages_at_once

# PopART's enum values (options reference, section 9).
_RECOMPUTE_PIPELINE = 3
_VIRTUAL_GRAPHS_MANUAL, _VIRTUAL_GRAPHS_EXECUTION_PHASES = 1, 3
_SCHEDULE_SCHEDULER = 0
_RETAIN_DEBUG = "debug.retainDebugInformation"


def log_options(options: Options) -> None:
    """Write one debug line for each option handed over; the output mode must be resolved."""
    repeat_filter.start(options.max_repeat_logs)
    if native_logger.isEnabledFor(logging.DEBUG):
        for line in option_lines(options.toDict()):
            native_logger.debug("%s", line)


def option_lines(flat: dict[str, Any]) -> Iterable[str]:
    for key, value in flat.items():
        if key == "anchored_tensors":
            for long_name, _, mode, period in value.values():
                name = OutputMode(mode).name
                yield f"anchor ( {long_name} {name if name == 'Sum' else name.upper()}/{period} )"
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


def derived_settings(
    options: Options, ipus: int, *, gradient_clipping: bool = False, overlapped_io: bool = False
) -> dict[str, Any]:
    """Return the settings derived for a program whose replicas use `ipus` IPUs, as they take effect; log each one.

    A setting that the user forced keeps the user's value; a warning is logged if the derived value differs.
    """
    user = options._backend.raw
    derived = _derived(options, ipus, gradient_clipping, overlapped_io)
    settings = {name: _settle(name, value, user) for name, value in derived.items()}
    engine_options = user.get("engineOptions", {})
    forced = {f"engineOptions[{name}]": value for name, value in engine_options.items()}
    retain = _settle(f"engineOptions[{_RETAIN_DEBUG}]", "false", forced)
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


def _derived(options: Options, ipus: int, gradient_clipping: bool, overlapped_io: bool) -> dict[str, bool | int]:
    strategy = options._execution_strategy
    pipelined = runs_stages_at_once(strategy) and ipus > 1
    settings: dict[str, bool | int] = {
        "enablePipelining": pipelined,
        "enableReplicatedGraphs": options.replication_factor > 1,
        "enableGradientAccumulation": options.Training.gradient_accumulation > 1,
        "constantWeights": False,
        "enableLoadAndOffloadRNGState": True,
    }
    if pipelined:
        settings["autoRecomputation"] = _RECOMPUTE_PIPELINE
        if gradient_clipping:
            settings["accumulateOuterFragmentSettings.schedule"] = _SCHEDULE_SCHEDULER
    if isinstance(strategy, _IPhasedExecution):
        settings["virtualGraphMode"] = _VIRTUAL_GRAPHS_EXECUTION_PHASES
        settings["executionPhaseSettings.stages"] = 1 if strategy._serial else 2
        settings["executionPhaseSettings.phases"] = strategy.total_phases()
    elif ipus > 1:
        settings["virtualGraphMode"] = _VIRTUAL_GRAPHS_MANUAL
    if options.Distributed.numProcesses > 1:
        settings["enableDistributedReplicatedGraphs"] = True
        settings["globalReplicationFactor"] = options.replication_factor * options.Distributed.numProcesses
        settings["globalReplicaOffset"] = options.replication_factor * options.Distributed.processId
    if overlapped_io:
        settings |= {"useHostCopyOps": True, "enableExplicitMainLoops": True}
    return settings
