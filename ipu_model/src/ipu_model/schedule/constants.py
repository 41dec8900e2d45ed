"""The constants that schedules need and no document gives: three sections of `data/calibration.toml`."""

from __future__ import annotations

from dataclasses import dataclass

from ipu_model.constants import Section, values


@dataclass(frozen=True)
class PipelineConstants(Section):
    """Section `pipeline`: what a pass of a stage costs besides its ops, and what a copy gets of the IPU-Links."""

    stage_pass_cycles: float
    copy_link_share: float


@dataclass(frozen=True)
class StreamConstants(Section):
    """Section `stream`: rates of a transfer between host and one IPU, and the wait at the start of a run."""

    ipu_bytes_per_second: float
    refill_bytes_per_second: float
    completion_bytes_per_second: float
    run_wait_seconds: float


@dataclass(frozen=True)
class CollectiveConstants(Section):
    """Section `collective`: what a ring gets of the IPU-Links, what a call costs, how far the links reach."""

    link_share: float
    call_seconds: float
    link_domain_ipus: float


def pipeline_constants() -> PipelineConstants:
    """Return section `pipeline` of `data/calibration.toml`."""
    return values("pipeline", PipelineConstants)


def stream_constants() -> StreamConstants:
    """Return section `stream` of `data/calibration.toml`."""
    return values("stream", StreamConstants)


def collective_constants() -> CollectiveConstants:
    """Return section `collective` of `data/calibration.toml`."""
    return values("collective", CollectiveConstants)
