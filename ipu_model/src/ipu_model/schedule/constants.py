"""The constants that schedules need and no document gives: three sections of `data/calibration.toml`."""

from __future__ import annotations

from dataclasses import dataclass

from ipu_model.constants import require_finite, values


@dataclass(frozen=True)
class PipelineConstants:
    """Section `pipeline`: what a pass of a stage costs besides its ops, and what a copy gets of the IPU-Links.

    Raises:
        Error: a negative or infinite number.
    """

    stage_pass_cycles: float
    copy_link_share: float

    def __post_init__(self) -> None:
        require_finite(self)


@dataclass(frozen=True)
class StreamConstants:
    """Section `stream`: rates of a transfer between host and one IPU, and the wait at the start of a run.

    Raises:
        Error: a negative or infinite number.
    """

    ipu_bytes_per_second: float
    refill_bytes_per_second: float
    completion_bytes_per_second: float
    run_wait_seconds: float

    def __post_init__(self) -> None:
        require_finite(self)


@dataclass(frozen=True)
class CollectiveConstants:
    """Section `collective`: what a ring gets of the IPU-Links, what a call costs, how far the links reach.

    Raises:
        Error: a negative or infinite number.
    """

    link_share: float
    call_seconds: float
    link_domain_ipus: float

    def __post_init__(self) -> None:
        require_finite(self)


def pipeline_constants() -> PipelineConstants:
    """Return section `pipeline` of `data/calibration.toml`."""
    return values("pipeline", PipelineConstants)


def stream_constants() -> StreamConstants:
    """Return section `stream` of `data/calibration.toml`."""
    return values("stream", StreamConstants)


def collective_constants() -> CollectiveConstants:
    """Return section `collective` of `data/calibration.toml`."""
    return values("collective", CollectiveConstants)
