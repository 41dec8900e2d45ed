"""The parts of a search: its limits, a setting that it tried with its figures, and a program that it found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ipu_model.explore.changed_lines import code_block
from ipu_model.explore.settings import Change, Setting
from ipu_model.predict.profile import Profile
from ipu_model.predict.verdict import Verdict
from ipu_model.report.quantities import counted


@dataclass(frozen=True)
class Limits:
    """The limits of a search: the most IPUs of all processes together, and the settings that stay as they are.

    `is_chip_given` is true if the user named a machine or a chip; `machine` is the name of a machine.
    """

    ipus: int | None = None
    keep: frozenset[str] = frozenset()
    is_chip_given: bool = False
    machine: str = ""

    def wider(self, own_machine: str) -> Iterator[Limits]:
        """Yield wider limits: first without the number of IPUs, then without what stays, then without both.

        With what stays, a search uses at most the IPUs of the program's own machine, because more would not be near.
        """
        if self.ipus is not None and self.keep:
            yield replace(self, ipus=None, machine=self.machine or own_machine)
            yield replace(self, keep=frozenset())
        if self.ipus is not None or self.keep or self.machine:
            yield Limits(is_chip_given=self.is_chip_given)

    def __str__(self) -> str:
        most = [] if self.ipus is None else [f"at most {counted(self.ipus, 'IPU')}"]
        machine = [self.machine] if self.machine else []
        return ", ".join([*most, *machine, *(f"{name} stays" for name in sorted(self.keep))])


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
    processes: int = 1

    @property
    def fits(self) -> bool:
        """Whether it fits for certain: too close to call does not count."""
        return self.verdict is Verdict.FITS

    @property
    def ipus(self) -> int:
        """The IPUs of all replicas of all processes."""
        return self.setting.all_ipus * self.processes

    @property
    def ipus_text(self) -> str:
        """The number of IPUs in words; if there are several processes, also the number in each."""
        if self.processes == 1:
            return counted(self.ipus, "IPU")
        return f"{self.ipus} IPUs ({self.setting.all_ipus} in each of {self.processes} processes)"

    def __str__(self) -> str:
        if self.refused:
            return f"{self.setting}: refused: {self.refused}"
        figures = f"{self.samples_per_second:,.1f} samples/s, {self.share:.0%} of a tile: {self.verdict}"
        return f"{self.setting}: {figures}"


@dataclass(frozen=True)
class Fit:
    """A program that a search found, with its changes and their code.

    `is_confirmed` tells whether the module was captured again with all changes and gave this profile; programs without
    a module cannot be. If capturing it was refused, `refused` says why, and the profile is derived from the program.
    """

    candidate: Candidate
    changes: tuple[Change, ...]
    code: str
    profile: Profile
    is_confirmed: bool
    refused: str = ""

    @property
    def samples_per_second(self) -> float:
        """Samples a second from end to end, of all replicas."""
        return self.profile.samples_per_second

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
        share = profile.memory.max_tile_bytes / profile.memory.tile_bytes
        return (
            f"{self.samples_per_second:,.1f} samples/s on {self.candidate.ipus_text} of {profile.machine.name}, "
            f"{share:.0%} of a tile: {profile.verdict}; limited by: {profile.limited_by}"
        )


@dataclass(frozen=True)
class FasterLoader:
    """Another way to load the data of a program: what changes, its line of code, and the speed with it."""

    change: str
    line: str
    samples_per_second: float
