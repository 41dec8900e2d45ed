"""The results of a search for pages: the programs that it found, and memory against throughput of all that it tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipu_model.predict.verdict import Verdict, close_band
from ipu_model.report.quantities import counted, percent, short

if TYPE_CHECKING:
    from ipu_model.explore.candidates import Candidate, Fit
    from ipu_model.explore.fit_result import FitResult

VERDICT_CLASSES = {Verdict.FITS: "good", Verdict.CLOSE: "close", Verdict.DOES_NOT_FIT: "bad"}


@dataclass(frozen=True)
class PageCandidate:
    """One setting that was modelled, as the page draws and lists it; `marks` are what it is called."""

    marks: str
    verdict: str
    tone: str
    share: float
    speed: float
    frontier: bool
    ipus: int
    replicas: int
    micro_batch: int
    split: str
    precision: str
    recomputation: str
    state: str
    proportion: str


@dataclass(frozen=True)
class Found:
    """A program that was found, as the page shows it."""

    title: str
    fit: Fit
    verdict: str
    speed: str
    details: str


def found_programs(result: FitResult) -> list[Found]:
    """Return the programs that the page shows: both that fit, or else the nearest and what fits within wider limits."""
    return [_shown(title, fit) for title, fit in result.programs]


def _shown(title: str, fit: Fit) -> Found:
    profile = fit.profile
    how = "captured again with these changes" if fit.is_confirmed else "derived from the captured program"
    details = (
        f"{fit.candidate.ipus_text} of {profile.machine.name}, "
        f"{percent(profile.memory.max_tile_bytes / profile.memory.tile_bytes)} of a tile; {how}"
    )
    return Found(
        title, fit, VERDICT_CLASSES[profile.verdict], f"{short(profile.samples_per_second)} samples/s", details
    )


def page_candidates(result: FitResult) -> list[PageCandidate]:
    """Return everything that was modelled, the leanest first."""
    front = set(result.frontier)
    every = sorted(result.modelled, key=lambda each: (each.share, -each.samples_per_second))
    return [_on_page(each, ", ".join(_marks(result, each)), each in front) for each in every]


def _marks(result: FitResult, candidate: Candidate) -> Iterator[str]:
    """Yield what a candidate is called: several names if it is the best in several ways."""
    for name, fit in (("fastest", result.fastest), ("cheapest", result.cheapest), ("nearest", result.nearest)):
        if fit is not None and fit.candidate == candidate:
            yield name
    if candidate == result.start:
        yield "as it is"


def _on_page(each: Candidate, marks: str, is_on_frontier: bool) -> PageCandidate:
    setting = each.setting
    state = [*(["float16"] if setting.half_state else []), *(["off chip"] if setting.off_chip else []),
             *(["sharded"] if setting.sharded else [])]  # fmt: skip
    return PageCandidate(
        marks=marks,
        verdict=str(each.verdict),
        tone=VERDICT_CLASSES[each.verdict],
        share=each.share,
        speed=each.samples_per_second,
        frontier=is_on_frontier,
        ipus=each.ipus,
        replicas=setting.replicas,
        micro_batch=setting.micro_batch,
        split="as it is" if setting.balance is None else f"equal {setting.balance.value}",
        precision=("float16" if setting.half else "as it is") + (", half partials" if setting.half_partials else ""),
        recomputation=setting.recomputation.value + (", checkpoints" if setting.checkpoints else ""),
        state=", ".join(state) or "as it is",
        proportion="as it is" if setting.proportion is None else f"{setting.proportion:g}",
    )


def described_picture(result: FitResult) -> str:
    """Return what the picture shows, in words."""
    low, high = close_band()
    fitting = sum(each.fits for each in result.modelled)
    return (
        f"Memory of the fullest tile against throughput: {counted(len(result.modelled), 'setting')}, of which "
        f"{fitting} {'fits' if fitting == 1 else 'fit'} for certain. Between {percent(low)} and {percent(high)} of a "
        "tile the model cannot tell. No setting beats those on the line in both memory and throughput. Settings that "
        "need more memory than the picture shows are drawn at its right edge."
    )
