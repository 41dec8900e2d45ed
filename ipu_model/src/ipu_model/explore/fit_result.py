"""What `make_it_fit` found: the programs that fit with their code, what was tried, and the words for both."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ipu_model.errors import Error
from ipu_model.explore.lines import code_block
from ipu_model.explore.options import Change
from ipu_model.explore.search_points import Setting
from ipu_model.predict.host import HostWork
from ipu_model.predict.profile import Profile, Verdict, close_band
from ipu_model.report.quantities import counted

CALL = "make_it_fit(module, inputs, options, ...)"
MARGIN = 0.05
"""The share of the fullest tile that recommendations leave free: the model misses fullest tiles by about as much."""


@dataclass(frozen=True)
class Limits:
    """The limits of a search: IPUs of all processes, what stays, if a machine or chip is given, and which machine.

    `margin` is the share of the fullest tile that stays free.
    """

    ipus: int | None = None
    keep: frozenset[str] = frozenset()
    is_chip_given: bool = False
    machine: str = ""
    margin: float = MARGIN

    def __post_init__(self) -> None:
        margin: object = self.margin
        if isinstance(margin, bool) or not isinstance(margin, (int, float)) or not 0 <= margin < 1:
            what = "margin is the share of the fullest tile that stays free, from 0 to below 1"
            raise Error(f"{what}, not {margin!r}: 0.05.")

    @property
    def most_of_a_tile(self) -> float:
        return min(1 - self.margin, close_band().low)

    def allow(self, share: float) -> bool:
        """Whether a program that needs this share of the fullest tile leaves the margin free."""
        return share <= self.most_of_a_tile

    @property
    def room(self) -> str:
        return f"with {100 * self.margin:.3g} % of the fullest tile free" if self.margin else "with no room to spare"

    def wider(self, own_machine: str) -> Iterator[Limits]:
        """Yield wider limits: no room, no `ipus`, nothing stays, neither; what stays needs a near machine."""
        if self.margin:
            yield replace(self, margin=0.0)
        if self.ipus is not None and self.keep:
            yield replace(self, ipus=None, machine=self.machine or own_machine)
            yield replace(self, keep=frozenset())
        if self.ipus is not None or self.keep or self.machine:
            yield Limits(is_chip_given=self.is_chip_given, margin=self.margin)

    def __str__(self) -> str:
        most = "" if self.ipus is None else f"at most {counted(self.ipus, 'IPU')}"
        stays = (f"{name} stays" for name in sorted(self.keep))
        room = "" if self.margin else "no room to spare"
        return ", ".join(text for text in (most, self.machine, *stays, room) if text)


@dataclass(frozen=True)
class Candidate:
    """A setting that was tried: verdict, share of the fullest tile, speed; `refused` says why it is impossible.

    `loads` are the cycles of a micro-batch in which each IPU does not wait, and the bytes of its fullest tile.
    """

    setting: Setting
    verdict: Verdict = Verdict.DOES_NOT_FIT
    share: float = float("inf")
    samples_per_second: float = 0.0
    loads: tuple[tuple[float, float], ...] = ()
    refused: str = ""
    processes: int = 1

    @property
    def fits(self) -> bool:
        return self.verdict is Verdict.FITS

    @property
    def ipus(self) -> int:
        return self.setting.ipus * self.processes

    @property
    def ipus_text(self) -> str:
        """The number of IPUs in words; if there are several processes, also the number in each."""
        if self.processes == 1:
            return counted(self.ipus, "IPU")
        return f"{self.ipus} IPUs ({self.setting.ipus} in each of {self.processes} processes)"

    def __str__(self) -> str:
        if self.refused:
            return f"{self.setting}: refused: {self.refused}"
        figures = f"{self.samples_per_second:,.1f} samples/s, {self.share:.0%} of a tile: {self.verdict}"
        return f"{self.setting}: {figures}"


@dataclass(frozen=True)
class Fit:
    """A program that a search found; unless captured again with all changes (or `refused`), its profile is derived."""

    candidate: Candidate
    changes: tuple[Change, ...]
    code: str
    profile: Profile
    is_confirmed: bool
    refused: str = ""

    @property
    def samples_per_second(self) -> float:
        return self.profile.samples_per_second

    @property
    def share(self) -> float:
        return self.profile.memory.share

    def __str__(self) -> str:
        return "\n\n".join((self.text(), *code_block(self.code)))

    def __repr__(self) -> str:
        return f"<Fit: {self._head()}; {counted(len(self.changes), 'change')}>"

    def text(self) -> str:
        """Return one line with the verdict, the speed and the bottleneck, then the changes."""
        changes = [f"  - {change.text} ({change.risk})" for change in self.changes] or ["  - no change"]
        return "\n".join((self._head(), *changes))

    def _head(self) -> str:
        profile = self.profile
        return (
            f"{self.samples_per_second:,.1f} samples/s on {self.candidate.ipus_text} of {profile.machine.name}, "
            f"{self.share:.0%} of a tile: {profile.verdict}; limited by: {profile.limited_by}"
        )


@dataclass(frozen=True)
class OtherLoader:
    """Another loader for the same data: the host's work with it, what changes, its line of code, effect and speed."""

    host: HostWork
    change: str
    line: str
    explanation: str
    samples_per_second: float = 0.0


@dataclass(frozen=True)
class FitResult:
    """The result of `make_it_fit`; `print` it, or show it in a notebook.

    `fastest` has the highest throughput, `cheapest` the fewest IPUs and then the fewest risky changes. Both are `None`
    if nothing fits, and `nearest` is then the program that comes nearest. `start` is the program as it is, `tried`
    everything that was modelled, impossible settings included. `notes` say what was left out, `binds` says what keeps a
    program from fitting, `instead` is what fits within `instead_limits`, which are wider than those of the search.
    `loaders` are other ways to load the data with which the best program is faster. `refusals` are what the front end
    refused when it captured the module with all changes. `runners_up` are the next best, each with what is to be said
    of it; `without` says what was not searched.
    """

    name: str
    start: Candidate
    fastest: Fit | None
    cheapest: Fit | None
    nearest: Fit | None
    tried: tuple[Candidate, ...]
    notes: tuple[str, ...] = ()
    binds: str = ""
    instead: Fit | None = None
    instead_limits: Limits | None = None
    loaders: tuple[OtherLoader, ...] = ()
    limits: Limits = field(default_factory=Limits)
    refusals: tuple[str, ...] = ()
    runners_up: tuple[tuple[str, Candidate], ...] = ()
    without: str = ""

    @property
    def nothing_fits(self) -> str:
        return f"Nothing fits {self.limits.room}"

    @property
    def found(self) -> bool:
        return self.fastest is not None

    @property
    def best(self) -> Fit | None:
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
        found = f"that was found {self.limits.room}{self.without}"
        if fastest.candidate == cheapest.candidate:
            if not fastest.changes:
                return (("No setting that was tried is faster or uses fewer IPUs", fastest),)
            return ((f"The fastest and the cheapest {found}", fastest),)
        if cheapest.candidate.ipus < fastest.candidate.ipus:
            heading = "The cheapest, on the fewest IPUs"
        elif not cheapest.changes:
            heading = "It fits as it is, on the same number of IPUs"
        else:
            heading = "The cheapest, on the same number of IPUs, but with fewer changes or less risky ones"
        return (f"The fastest {found}", fastest), (heading, cheapest)

    @property
    def code(self) -> str:
        """The changed lines of the fastest program that fits, or of the nearest if none does."""
        return "" if self.best is None else self.best.code

    @property
    def modelled(self) -> tuple[Candidate, ...]:
        """What is possible of what was tried, the leanest first, then the fastest."""
        possible = (candidate for candidate in self.tried if not candidate.refused)
        return tuple(sorted(possible, key=lambda one: (one.share, -one.samples_per_second)))

    @property
    def frontier(self) -> tuple[Candidate, ...]:
        """What no other candidate beats in both memory and speed, the leanest first."""
        front: list[Candidate] = []
        for candidate in self.modelled:
            if not front or candidate.samples_per_second > front[-1].samples_per_second:
                front.append(candidate)
        return tuple(front)

    def for_shell(self) -> FitResult:
        """Return the result with advice on the options of `python -m ipu_model fit`, in place of arguments."""
        return replace(
            self,
            notes=tuple(re.sub(r'(\w+)="?(\w+)"?', r"--\1 \2", note) for note in self.notes),
            without=self.without.replace(CALL, "python -m ipu_model fit program.py:function"),
        )

    def __str__(self) -> str:
        start = self.start
        how = f"{start.share:.0%} of a tile on {start.ipus_text}, {start.samples_per_second:,.1f} samples/s"
        parts = [f"{self.name} as it is: {start.verdict} ({how})."]
        if not self.found:
            asked = f" within the limits that you set ({self.limits})" if str(self.limits) else ""
            parts.append(f"{self.nothing_fits}{asked}. {self.binds}".rstrip())
        for title, fit in self.programs:
            parts += [f"{title}: {fit.text()}", *code_block(fit.code)]
        parts += [f"{what}: {candidate}" for what, candidate in self.runners_up]
        return "\n\n".join((*parts, *self._loading(), "\n".join(self._remarks())))

    def __repr__(self) -> str:
        what = "nothing fits" if self.fastest is None else self.fastest.text().partition("\n")[0]
        return f"<FitResult of {self.name!r}: {what}; {counted(len(self.tried), 'program')} modelled>"

    def _repr_html_(self) -> str:
        start = self.start
        speed, share = f"{start.samples_per_second:,.1f}", f"{start.share:.0%}"
        rows: list[tuple[object, ...]] = [("as it is", speed, start.ipus, share, start.verdict, "")]
        codes = ""
        fits = {"cheapest": self.cheapest, "fastest": self.fastest, "nearest": self.nearest}
        for name, fit in {**fits, "within wider limits": self.instead}.items():
            if fit is None:
                continue
            changes = "<br>".join(html.escape(change.text) for change in fit.changes)
            speed = f"{fit.samples_per_second:,.1f}"
            rows.append((name, speed, fit.candidate.ipus, f"{fit.share:.0%}", fit.profile.verdict, changes))
            if fit.code:
                summary = f"<summary>Lines of the {name}</summary><pre>{html.escape(fit.code)}</pre>"
                codes += f"<details{' open' * (fit is self.best)}>{summary}</details>"
        head = "".join(f"<th>{title}</th>" for title in ("", "samples/s", "IPUs", "of a tile", "memory", "changes"))
        body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
        notes = html.escape(" ".join(text for text in (self.binds, *self._loading(), *self._remarks()) if text))
        return f"<table><tr>{head}</tr>{body}</table>{codes}<p>{notes}</p>"

    def _loading(self) -> list[str]:
        fit = self.fastest
        is_bottleneck = fit is not None and fit.profile.limited_by == "host loader"
        if fit is None or not (self.loaders or is_bottleneck):
            return []
        device = fit.profile.device_samples_per_second
        speed = f"The program reaches {fit.samples_per_second:,.1f} samples/s; its IPUs alone would reach {device:,.1f}"
        bottleneck = "The loader on the host is the bottleneck. " if is_bottleneck else ""
        others = [f"  - {one.change}: {one.samples_per_second:,.1f} samples/s, by {one.line}" for one in self.loaders]
        return ["\n".join((f"{bottleneck}{speed}.{' With another loader:' if others else ''}", *others))]

    def _remarks(self) -> Iterator[str]:
        fit = self.best
        yield from self.notes
        if fit is not None and fit.changes:
            yield "All figures are modelled, and the global batch is the same everywhere."
            if fit.is_confirmed:
                yield "Capturing the module again with these changes gave the same figures."
            elif not fit.refused:
                derived = "These figures are derived from the captured program."
                yield f"{derived} Without its module it cannot be captured again."
        for refusal in self.refusals:
            yield f"The module could not be captured with all the changes of a program: {refusal}"
        yield f"{counted(len(self.tried), 'program')} modelled."
