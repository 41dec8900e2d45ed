"""Tell the owner of a program first what fills the fullest tile, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipu_model.predict.profile import LiveTensor, Profile, Verdict
from ipu_model.report.breakdown import LAYER_STAR, fullest_ipu, layers_starred, memory_group
from ipu_model.report.looks import LOOKS, PageLook
from ipu_model.report.quantities import counted, short

if TYPE_CHECKING:
    from ipu_model.explore.advise import Advice
    from ipu_model.explore.fit_result import Fit, FitResult
    from ipu_model.explore.settings import Change

_MOST_HOLDERS = 6
_LEAST_SHARE = 0.01
"""Parts that take less of a tile share one row."""
_FIT_COMMAND = "python -m ipu_model fit FOLDER"
_FOLDER = "FOLDER stands for the folder of this report, or for the program as program.py:function."


@dataclass(frozen=True)
class Holder:
    """What holds a part of the fullest tile: tensors of one category in a module, or a category that has no tensors.

    Layers of a list count as one module. `share` is of the memory of one tile.
    """

    name: str
    what: str
    bytes_on_tile: float
    share: float
    look: PageLook


@dataclass(frozen=True)
class FirstSteps:
    """What to do first: a headline, the changes, and the lines to write; `verdict` is that of the changed program."""

    title: str
    headline: str
    verdict: Verdict | None = None
    explanation: str = ""
    steps: tuple[Change, ...] = ()
    code: str = ""


def holders(profile: Profile) -> tuple[Holder, ...]:
    """Return what takes most of the fullest tile at its fullest moment, the largest first, and all else as one."""
    memory, limit = profile.memory[fullest_ipu(profile)], profile.memory.tile_bytes

    def holder(name: str, what: str, category: str, count: float) -> Holder:
        return Holder(name, what, count, count / limit, LOOKS.memory[memory_group(category)])

    groups: dict[tuple[str, str], list[LiveTensor]] = {}
    for tensor in memory.live_at_peak:
        groups.setdefault((_module_of(tensor.name), tensor.category), []).append(tensor)
    parts = []
    for (name, kind), alike in groups.items():
        what, name = (kind, alike[0].name) if len(alike) == 1 else (f"{kind}, {len(alike)} tensors", name)
        parts.append(holder(name, what, kind, sum(tensor.bytes_on_fullest_tile for tensor in alike)))
    with_tensors = {kind for _, kind in groups}
    for category in memory.categories:
        if category.name not in with_tensors:
            when = "always" if category.always_live else "at the peak"
            parts.append(holder(category.name, when, category.name, category.bytes_on_fullest_tile))
    parts = sorted((part for part in parts if part.bytes_on_tile > 0), key=lambda part: -part.bytes_on_tile)
    shown = [part for part in parts[:_MOST_HOLDERS] if part.share >= _LEAST_SHARE]
    rest = memory.max_tile_bytes - sum(part.bytes_on_tile for part in shown)
    left = len(parts) - len(shown)
    if left and rest > 0:
        shown.append(Holder("all else", counted(left, "smaller part"), rest, rest / limit, LOOKS.other))
    return tuple(shown)


def _module_of(tensor: str) -> str:
    """Return the part of a tensor's name that names a module: up to the last list of layers, or else the innermost."""
    name = layers_starred(tensor)
    module, star, _ = name.rpartition(LAYER_STAR)
    return module + star or name.rpartition(":")[0] or name.rpartition(".")[0] or name


def first_steps(profile: Profile, advice: Sequence[Advice], fit: FitResult | None) -> FirstSteps | None:
    """Return what to do first, from a search if there was one, else from advice; `None` if nothing is known to help."""
    if fit is not None and fit.best is not None:
        return _of_search(fit, fit.best)
    if profile.verdict is Verdict.FITS:
        return _of_advice("The first thing to try", advice[0]) if advice else None
    title = "The first thing to do"
    if not advice:
        return FirstSteps(title, "Search for settings with which it fits", explanation=_FOLDER, code=_FIT_COMMAND)
    first = advice[0]
    if first.fits:
        return _of_advice(title, first)
    explanation = (
        "No single change that was tried makes it fit for certain. The most useful one changes the fullest tile by "
        f"{first.max_tile_bytes_change / 1024:+,.0f} KiB: {first.change}. {_FOLDER}"
    )
    return FirstSteps(title, "Search for several changes together", None, explanation, code=_FIT_COMMAND)


def _of_search(fit: FitResult, best: Fit) -> FirstSteps:
    profile, changes = best.profile, best.changes
    where = f"{short(profile.samples_per_second)} samples/s on {best.candidate.ipus_text} of {profile.machine.name}"
    title = "The first thing to try" if fit.start.fits else "The first thing to do"
    if fit.found and not changes:
        headline = f"No change: no setting that was tried and fits is faster than {where}"
        return FirstSteps(title, headline, profile.verdict)
    runs = "runs at" if fit.start.fits else "fits and runs at"
    headline = f"With {counted(len(changes), 'change')} it {runs} {where}"
    if not fit.found:
        headline = f"Nothing fits for certain. The nearest: {where}"
    return FirstSteps(title, headline, profile.verdict, "" if fit.found else fit.binds, changes, best.code)


def _of_advice(title: str, item: Advice) -> FirstSteps:
    explanation = f"Modelled: {item.effect}. {item.explanation} Risk: {item.risk}."
    return FirstSteps(title, item.change, item.verdict, explanation, code=item.how)
