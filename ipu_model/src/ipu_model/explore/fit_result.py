"""What `make_it_fit` found: the fastest and the cheapest program that fit, what was tried, and the code."""

from __future__ import annotations

import html
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ipu_model.explore.notes import Note
from ipu_model.explore.settings import Change, Setting
from ipu_model.predict.profile import Profile
from ipu_model.predict.verdict import Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Limits:
    """What a search must not go beyond: the most IPUs, and what stays as it is.

    `is_chip_given` is true if a machine or its chip was asked for, `is_machine_given` if it was a machine.
    """

    ipus: int | None = None
    keep: frozenset[str] = frozenset()
    is_chip_given: bool = False
    is_machine_given: bool = False


@dataclass(frozen=True)
class Candidate:
    """One setting that was tried: its verdict, the share of a tile that its fullest tile holds, and its speed.

    If the setting is impossible, `refused` says why.
    """

    setting: Setting
    verdict: Verdict = Verdict.DOES_NOT_FIT
    share: float = float("inf")
    samples_per_second: float = 0.0
    refused: str = ""

    @property
    def fits(self) -> bool:
        """Whether it fits for certain: too close to call does not count."""
        return self.verdict is Verdict.FITS

    @property
    def ipus(self) -> int:
        """The IPUs of all replicas of one process."""
        return self.setting.all_ipus


@dataclass(frozen=True)
class Fit:
    """A program that a search found, with its changes and their code.

    `is_confirmed` tells whether the module was captured again with all changes and gave this profile; programs without
    a module cannot be.
    """

    candidate: Candidate
    changes: tuple[Change, ...]
    code: str
    profile: Profile
    is_confirmed: bool

    def text(self) -> str:
        """Return one line with the verdict and the speed, then the changes."""
        profile, ipus = self.profile, self.candidate.ipus
        head = (
            f"{profile.samples_per_second:,.1f} samples/s on {_count(ipus, 'IPU')} ({profile.machine.name}), "
            f"{profile.memory.max_tile_bytes / profile.memory.tile_bytes:.0%} of a tile: {profile.verdict}"
        )
        changes = [f"  - {change.text} ({change.risk})" for change in self.changes] or ["  - no change"]
        return "\n".join((head, *changes))


@dataclass(frozen=True)
class FitResult:
    """The result of `make_it_fit`; `print` it, or show it in a notebook.

    `fastest` has the most samples a second, `cheapest` the fewest IPUs and then the fewest risky changes; both are
    `None` if nothing fits, and `nearest` is then what comes nearest. `start` is the program as it is, `tried`
    everything that was modelled, impossible settings included. `notes` say what was left out, `binds` says what keeps a
    program from fitting, `instead` is what fits without the limits of the search, and `elsewhere` the fastest program
    on a machine of a faster chip.
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
    elsewhere: Candidate | None = None
    limits: Limits = field(default_factory=Limits)

    @property
    def found(self) -> bool:
        """Whether anything fits for certain."""
        return self.fastest is not None

    @property
    def best(self) -> Fit | None:
        """The fastest that fits, else the nearest."""
        return self.fastest or self.nearest

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
        parts = [self._start(), *self._found(), *self._impossible(), "\n".join(self._about())]
        return "\n\n".join(parts)

    def for_shell(self) -> FitResult:
        """Return the result with advice on the options of `python -m ipu_model fit`, in place of arguments."""
        return replace(self, notes=tuple(note.to_shell() for note in self.notes))

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        what = "nothing fits" if self.fastest is None else self.fastest.text().partition("\n")[0]
        return f"<FitResult of {self.name!r}: {what}; {len(self.tried)} programs modelled>"

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
        )
        notes = html.escape(" ".join(each for each in (self.binds, *self._about()) if each))
        return f"<table><tr>{head}</tr>{body}</table>{codes}<p>{notes}</p>"

    def figure(self) -> Figure:
        """Return memory against throughput of everything that was tried, as a matplotlib figure."""
        from ipu_model.report.figures.frontier import FrontierPoint, frontier_figure

        chosen = {fit.candidate: name for name, fit in self._named() if fit is not None}
        front = set(self.frontier)
        return frontier_figure([
            FrontierPoint(each.share, each.samples_per_second, each.fits, each in front, chosen.get(each, ""))
            for each in self.modelled
        ])  # fmt: skip

    def _named(self) -> tuple[tuple[str, Fit | None], ...]:
        return ("cheapest", self.cheapest), ("fastest", self.fastest), ("nearest", self.nearest)

    # --- parts of the text

    def _start(self) -> str:
        start = self.start
        how = f"{start.share:.0%} of a tile on {_count(start.ipus, 'IPU')}, {start.samples_per_second:,.1f} samples/s"
        return f"{self.name} as it is: {start.verdict} ({how})."

    def _found(self) -> list[str]:
        if self.fastest is None or self.cheapest is None:
            return []
        if self.fastest.candidate == self.cheapest.candidate:
            return [f"The fastest and the cheapest that fits: {self.fastest.text()}", _block(self.fastest.code)]
        return [
            f"The fastest that fits: {self.fastest.text()}", _block(self.fastest.code),
            f"The cheapest that fits: {self.cheapest.text()}", _block(self.cheapest.code),
        ]  # fmt: skip

    def _impossible(self) -> list[str]:
        if self.found:
            return []
        asked = f" within what was asked for ({self._asked()})" if self._asked() else ""
        parts = [f"Nothing fits for certain{asked}. {self.binds}".rstrip()]
        if self.nearest is not None:
            parts += [f"The nearest: {self.nearest.text()}", _block(self.nearest.code)]
        if self.instead is not None:
            parts += [f"Without these limits this fits: {self.instead.text()}", _block(self.instead.code)]
        return parts

    def _asked(self) -> str:
        most = [] if self.limits.ipus is None else [f"at most {_count(self.limits.ipus, 'IPU')}"]
        return ", ".join([*most, *(f"{name} stays" for name in sorted(self.limits.keep))])

    def _about(self) -> list[str]:
        """Return what to know about the figures, and what the search left out, in sentences."""
        fit = self.best
        found = [str(note) for note in self.notes]
        if fit is not None and fit.changes:
            how = "captured again with these changes" if fit.is_confirmed else "derived from the captured program"
            found.append(f"All figures are modelled; the program was {how}. The global batch is the same everywhere.")
        found.append(f"{_count(len(self.tried), 'program')} modelled.")
        return found


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


def _count(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{number} {what}s"


def _block(code: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in code.splitlines())
