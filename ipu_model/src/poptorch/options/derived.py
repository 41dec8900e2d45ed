"""Backend settings that follow from the options and the traced model, unless `_Popart.set` says otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from poptorch._logging import native_logger
from poptorch.options.strategies import total_phases
from poptorch.options.structure import OptionsStructure

# PopART's enum values (options reference, section 9).
_RECOMPUTE_PIPELINE = 3
_VIRTUAL_GRAPHS_MANUAL = 1
_VIRTUAL_GRAPHS_EXECUTION_PHASES = 3
_SCHEDULE_SCHEDULER = 0

_PIPELINED, _PHASED = 0, 2
_RETAIN_DEBUG = "debug.retainDebugInformation"


@dataclass(frozen=True)
class TracedProgram:
    """What derived settings need to know of a traced model; `ipus` counts those one replica's ops use."""

    ipus: int
    gradient_clipping: bool = False
    overlapped_io: bool = False


def derived_settings(options: OptionsStructure, program: TracedProgram) -> dict[str, Any]:
    """Return the derived settings as they take effect, logging each one.

    A setting that the user forced keeps the user's value, with a warning where that contradicts ours.
    """
    user = options._popart.options
    settings = {name: _settle(name, value, user) for name, value in _derive(options, program).items()}
    engine_options = user.get("engineOptions", {})
    retain = _settle(
        f"engineOptions[{_RETAIN_DEBUG}]",
        "false",
        {f"engineOptions[{name}]": value for name, value in engine_options.items()},
    )
    settings["engineOptions"] = {**engine_options, _RETAIN_DEBUG: retain}
    return settings


def _settle(name: str, derived: bool | int | str, user: dict[str, Any]) -> Any:
    forced = user.get(name, derived)
    shown = int(derived) if isinstance(derived, bool) else derived
    if forced == derived:
        native_logger.debug("%s set to value %s", name, shown)
    else:
        native_logger.warning("%s forced by the user to %s: the value %s is ignored", name, forced, shown)
    return forced


def _derive(options: OptionsStructure, program: TracedProgram) -> dict[str, bool | int]:
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
