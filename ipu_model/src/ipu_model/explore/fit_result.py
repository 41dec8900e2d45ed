"""What `make_it_fit` found: the fastest and the cheapest program that fit, what was tried, and the code."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ipu_model.explore.candidates import Candidate, FasterLoader, Fit, Limits
from ipu_model.explore.changed_lines import code_block
from ipu_model.explore.notes import Note
from ipu_model.report.quantities import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HOST_LOADER = "host loader"
"""What `Profile.limited_by` says if loading is the bottleneck."""


@dataclass(frozen=True)
class FitResult:
    """The result of `make_it_fit`; `print` it, or show it in a notebook.

    `fastest` has the highest throughput, `cheapest` the fewest IPUs and then the fewest risky changes. Both are `None`
    if nothing fits, and `nearest` is then the program that comes nearest. `start` is the program as it is, `tried`
    everything that was modelled, impossible settings included. `notes` say what was left out, `binds` says what keeps a
    program from fitting, `instead` is what fits within `instead_limits`, which are wider than those of the search, and
    `elsewhere` the fastest program on a machine of a faster chip. `loaders` are other ways to load the data with which
    the best program is faster. `refusals` are what the front end refused when it captured the module with all changes.
    """

    name: str
    start: Candidate
    fastest: Fit | None
    cheapest: Fit | None
    nearest: Fit | None
    tried: tuple[Candidate, ...]
    notes: tuple[Note, ...] = ()
    binds: str = ""
    instead: Fit | None = None
    instead_limits: Limits | None = None
    elsewhere: Candidate | None = None
    loaders: tuple[FasterLoader, ...] = ()
    limits: Limits = field(default_factory=Limits)
    refusals: tuple[str, ...] = ()

    @property
    def found(self) -> bool:
        """Whether anything fits for certain."""
        return self.fastest is not None

    @property
    def best(self) -> Fit | None:
        """The fastest that fits, else the nearest."""
        return self.fastest or self.nearest

    @property
    def programs(self) -> tuple[tuple[str, Fit], ...]:
        """What was found, with headings: both that fit, or else the nearest and what fits within wider limits."""
        fastest, cheapest = self.fastest, self.cheapest
        if fastest is None or cheapest is None:
            left = str(self.instead_limits or "")
            wider = f"This fits within wider limits ({left})" if left else "This fits without limits"
            others = (("The nearest", self.nearest), (wider, self.instead))
            return tuple((title, fit) for title, fit in others if fit is not None)
        if fastest.candidate != cheapest.candidate:
            return ("The fastest that fits", fastest), (_heading_of_cheapest(fastest, cheapest), cheapest)
        if not fastest.changes:
            return (("No setting that was tried is faster or uses fewer IPUs", fastest),)
        return (("The fastest and the cheapest that fits", fastest),)

    @property
    def code(self) -> str:
        """The changed lines of the fastest program that fits, or of the nearest if none does."""
        return "" if self.best is None else self.best.code

    @property
    def frontier(self) -> tuple[Candidate, ...]:
        """What no other candidate beats in both memory and speed, the leanest first."""
        found: list[Candidate] = []
        for each in sorted(self.modelled, key=lambda one: (one.share, -one.samples_per_second)):
            if not found or each.samples_per_second > found[-1].samples_per_second:
                found.append(each)
        return tuple(found)

    @property
    def modelled(self) -> tuple[Candidate, ...]:
        """What was tried and is possible."""
        return tuple(each for each in self.tried if not each.refused)

    def text(self) -> str:
        """Return the result in plain text, with the code."""
        return _text_of(self)

    def for_shell(self) -> FitResult:
        """Return the result with advice on the options of `python -m ipu_model fit`, in place of arguments."""
        return replace(self, notes=tuple(note.to_shell() for note in self.notes))

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        what = "nothing fits" if self.fastest is None else self.fastest.text().partition("\n")[0]
        return f"<FitResult of {self.name!r}: {what}; {counted(len(self.tried), 'program')} modelled>"

    def _repr_html_(self) -> str:
        named = [(name, fit) for name, fit in self._named() if fit is not None]
        start = self.start
        head = "".join(f"<th>{title}</th>" for title in ("", "samples/s", "IPUs", "of a tile", "memory", "changes"))
        now = ("as it is", f"{start.samples_per_second:,.1f}", start.ipus, f"{start.share:.0%}", start.verdict, "")
        rows = [now, *(_html_row(name, fit) for name, fit in named)]
        body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
        codes = "".join(
            f"<details{' open' * (fit is self.best)}><summary>Lines of the {name}</summary>"
            f"<pre>{html.escape(fit.code)}</pre></details>"
            for name, fit in named
            if fit.code
        )
        notes = html.escape(" ".join(each for each in (self.binds, *_loading(self), *_remarks_of(self)) if each))
        return f"<table><tr>{head}</tr>{body}</table>{codes}<p>{notes}</p>"

    def figure(self) -> Figure:
        """Return memory against throughput of everything that was tried, as a matplotlib figure."""
        from ipu_model.report.figures.memory import FrontierPoint, frontier_figure

        chosen = {fit.candidate: name for name, fit in self._named() if fit is not None}
        front = set(self.frontier)
        return frontier_figure([
            FrontierPoint(each.share, each.samples_per_second, each.fits, each in front, chosen.get(each, ""))
            for each in self.modelled
        ])  # fmt: skip

    def _named(self) -> tuple[tuple[str, Fit | None], ...]:
        wider = "within wider limits", self.instead
        return ("cheapest", self.cheapest), ("fastest", self.fastest), ("nearest", self.nearest), wider


def _html_row(name: str, fit: Fit) -> tuple[object, ...]:
    memory = fit.profile.memory
    return (
        name,
        f"{fit.profile.samples_per_second:,.1f}",
        fit.candidate.ipus,
        f"{memory.max_tile_bytes / memory.tile_bytes:.0%}",
        fit.profile.verdict,
        "<br>".join(html.escape(change.text) for change in fit.changes),
    )


# --- in plain text


def _text_of(result: FitResult) -> str:
    """Return a result in plain text, with the code."""
    start = result.start
    how = f"{start.share:.0%} of a tile on {start.ipus_text}, {start.samples_per_second:,.1f} samples/s"
    head = f"{result.name} as it is: {start.verdict} ({how})."
    return "\n\n".join(
        (head, *_not_found(result), *_programs(result), *_loading(result), "\n".join(_remarks_of(result)))
    )


def _heading_of_cheapest(fastest: Fit, cheapest: Fit) -> str:
    if cheapest.candidate.ipus < fastest.candidate.ipus:
        return "The cheapest that fits, on the fewest IPUs"
    if not cheapest.changes:
        return "It fits as it is, on the same number of IPUs"
    return "The cheapest that fits, on the same number of IPUs, but with fewer changes or less risky ones"


def _not_found(result: FitResult) -> list[str]:
    if result.found:
        return []
    asked = f" within the limits that you set ({result.limits})" if str(result.limits) else ""
    return [f"Nothing fits for certain{asked}. {result.binds}".rstrip()]


def _programs(result: FitResult) -> list[str]:
    return [part for title, fit in result.programs for part in (f"{title}: {fit.text()}", *code_block(fit.code))]


def _loading(result: FitResult) -> list[str]:
    """Return what the host's loader does to the best program, and what other loaders would do."""
    fit = result.fastest
    if fit is None or not (result.loaders or fit.profile.limited_by == _HOST_LOADER):
        return []
    device = fit.profile.device_samples_per_second
    speed = f"The program reaches {fit.samples_per_second:,.1f} samples/s; its IPUs alone would reach {device:,.1f}"
    bottleneck = "The loader on the host is the bottleneck. " if fit.profile.limited_by == _HOST_LOADER else ""
    head = f"{bottleneck}{speed}."
    lines = [f"  - {each.change}: {each.samples_per_second:,.1f} samples/s, by {each.line}" for each in result.loaders]
    return ["\n".join((f"{head} With another loader:" if lines else head, *lines))]


def _remarks_of(result: FitResult) -> Iterator[str]:
    """Yield what else there is to know: what was left out, and how far the figures are confirmed."""
    fit = result.best
    yield from map(str, result.notes)
    if fit is not None and fit.changes:
        yield "All figures are modelled, and the global batch is the same everywhere."
        if fit.is_confirmed:
            yield "Capturing the module again with these changes gave the same figures."
        elif not fit.refused:
            yield "These figures are derived from the captured program. Without its module it cannot be captured again."
    for refusal in result.refusals:
        yield f"The module could not be captured with all the changes of a program: {refusal}"
    yield f"{counted(len(result.tried), 'program')} modelled."
