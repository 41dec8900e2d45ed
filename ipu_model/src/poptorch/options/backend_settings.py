"""A typed view of the raw settings of `Options._Popart`; no other module reads them.

Settings that a program leaves out have the backend's defaults, which this module defines. Their keys and the types of
their values are checked when a model is compiled (`poptorch.options.handover`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ipu_model.compute.loss_scaling import LossScalingSettings
from poptorch._impl import createPoptorchError

ENGINE_OPTIONS = "POPLAR_ENGINE_OPTIONS"
LOSS_SCALING = "automaticLossScalingSettings"


@dataclass(frozen=True)
class BackendSettings:
    """A typed view of the settings that have an effect here; `raw` holds the settings under the backend's names."""

    raw: Mapping[str, Any]

    @property
    def synthetic_data(self) -> bool:
        """Whether the device makes up its inputs."""
        return bool(self.raw.get("syntheticDataMode"))

    @property
    def counts_cycles(self) -> bool:
        """Whether the cycles of each run are counted."""
        return bool(self.raw.get("instrumentWithHardwareCycleCounter"))

    @property
    def cache_folder(self) -> str | None:
        """The folder of the executable cache, or `None` without a cache."""
        folder = self.raw.get("cachePath")
        return folder if folder and self.raw.get("enableEngineCaching") else None

    @property
    def updatable_buffers(self) -> tuple[str, ...]:
        """Names of the buffers that may be uploaded on their own."""
        return tuple(self.raw.get("updatableNamedBuffers") or ())

    @property
    def stochastic_rounding(self) -> bool:
        """Whether rounding to float16 is stochastic."""
        return bool(self.raw.get("enableStochasticRounding"))

    @property
    def floating_point_exceptions(self) -> bool:
        """Whether invalid operations and overflow stop the program."""
        return bool(self.raw.get("enableFloatingPointChecks"))

    @property
    def half_matmuls(self) -> bool:
        """Whether matrix products of float16 values accumulate in float16."""
        return bool(self.raw.get("partialsTypeMatMuls") == "half")

    @property
    def half_convolutions(self) -> bool:
        """Whether convolutions of float16 values accumulate in float16."""
        return bool(self.raw.get("convolutionOptions", {}).get("partialsType") == "half")

    @property
    def stable_norm(self) -> bool:
        """Whether normalisation layers use the slower, more accurate formulas."""
        return bool(self.raw.get("enableStableNorm"))

    @property
    def pipelining(self) -> bool:
        """Whether a pipelined strategy may run as a pipeline."""
        return bool(self.raw.get("enablePipelining", True))

    @property
    def recomputation(self) -> int | None:
        """The number of the recomputation mode that was set, if one was."""
        chosen = self.raw.get("autoRecomputation")
        return None if chosen is None else int(chosen)

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
    def adapts_loss_scaling(self) -> bool:
        """Whether the loss scaling adapts itself."""
        return bool(self.raw.get(f"{LOSS_SCALING}.enabled"))

    @property
    def loss_scaling(self) -> LossScalingSettings:
        """The settings of automatic loss scaling as the program set them; they may be out of range."""
        default = LossScalingSettings()
        return LossScalingSettings(
            float(self.raw.get(f"{LOSS_SCALING}.binEdgeLocation", default.bin_edge)),
            float(self.raw.get(f"{LOSS_SCALING}.thresholdUpperCountProportion", default.threshold)),
            int(self.raw.get(f"{LOSS_SCALING}.updatePeriod", default.period)),
        )

    @property
    def loss_scaling_text(self) -> str:
        """The settings of automatic loss scaling as text; equal settings give equal text."""
        chosen = {key: value for key, value in self.raw.items() if key.startswith(LOSS_SCALING)}
        return ", ".join(f"{key}={value}" for key, value in sorted(chosen.items())) or "off"

    @property
    def engine_options(self) -> EngineOptions:
        """The engine options of the program and of `POPLAR_ENGINE_OPTIONS`; raises as `read_engine_options`."""
        return read_engine_options(self.raw.get("engineOptions", {}))


@dataclass(frozen=True)
class EngineOptions:
    """The Poplar engine's options that have an effect here: reports, and what happens when memory runs out.

    If `report` is true, a report is written to `directory`; with `execution`, it includes the timeline.

    If `from_environment` is true, an environment variable named the directory and the report goes directly into it;
    otherwise each model gets a folder there. A program that does not fit stops with an error; with
    `allow_out_of_memory`, it leaves its report first, as Poplar leaves a profile.
    """

    report: bool = False
    execution: bool = False
    directory: str = "."
    from_environment: bool = False
    allow_out_of_memory: bool = True


def read_engine_options(from_api: Mapping[str, Any]) -> EngineOptions:
    """Return the options that apply: those of `POPLAR_ENGINE_OPTIONS`, then those that the program set.

    `autoReport.all` is the default of `autoReport.outputGraphProfile` and `autoReport.outputExecutionProfile`;
    `debug.allowOutOfMemory` is true unless it is switched off, as in Poplar since SDK 2.1.

    Raises:
        Error: the variable is not a JSON object, a switch is not "true" or "false", or the directory is not a string.
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
        allow_out_of_memory=_switch(found, "debug.allowOutOfMemory", True),
    )


def engine_options_of_environment() -> dict[str, object]:
    """Return the object in `POPLAR_ENGINE_OPTIONS`, empty if the variable is not set.

    Raises:
        Error: it is not a JSON object.
    """
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
