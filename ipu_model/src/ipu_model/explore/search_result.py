"""Choose the fastest and the cheapest program of a search, confirm them, and drop changes that gain nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from ipu_model.errors import Error
from ipu_model.explore.binding import binding_text
from ipu_model.explore.candidates import Candidate, FasterLoader, Fit, Limits
from ipu_model.explore.changed_lines import code_of
from ipu_model.explore.fit_result import FitResult
from ipu_model.explore.notes import Note, fewer_ipus, other_limits, other_machine, other_micro_batches, other_types
from ipu_model.explore.other_loaders import other_loaders
from ipu_model.explore.search import NEGLIGIBLE_GAIN, Search, message_of
from ipu_model.explore.settings import Setting
from ipu_model.predict import profile_program, samples_per_second
from ipu_model.predict.verdict import Verdict
from ipu_model.report.quantities import counted

_MOST_CONFIRMED = 4
_BOW = "Bow"


class Findings:
    """Work out the result of a search that has run; profiles that this needs are modelled on demand."""

    def __init__(self, search: Search) -> None:
        self.search, self.programs, self.limits, self.host = search, search.programs, search.limits, search.host
        self._refusals: dict[str, None] = {}
        self._fits: dict[Candidate, Fit] = {}

    def result(self) -> FitResult:
        """Return what was found."""
        found = self._confirmed(self._simplified(each) for each in self._fastest_first())
        cheapest = None if found is None else self._cheapest_fit() or found
        fits = [each for each in (cheapest, found) if each is not None]
        fastest = max(fits, key=lambda each: each.samples_per_second, default=None)
        nearest = None if fastest is not None else self._nearest()
        elsewhere = None if fastest is None else self._elsewhere(fastest)
        instead, wider = (None, None) if fastest is not None else self._instead()
        best = fastest or nearest
        return FitResult(
            name=self.programs.base.name,
            start=self.search.start,
            fastest=fastest,
            cheapest=cheapest,
            nearest=nearest,
            tried=tuple(self.search.tried.values()),
            notes=self._notes(elsewhere),
            binds="" if fastest is not None else self._binds(nearest),
            instead=instead,
            instead_limits=wider,
            elsewhere=elsewhere,
            loaders=() if best is None else self._faster_loaders(best),
            limits=self.limits,
            refusals=tuple(self._refusals),
        )

    def _fastest_first(self) -> list[Candidate]:
        """Return what fits, the fastest first; of those nearly as fast as the fastest, that on the fewest IPUs."""
        fitting = sorted(self.search.fitting(), key=lambda each: -each.samples_per_second)
        least = self._least_speed(fitting[0].samples_per_second) if fitting else 0.0
        return sorted(fitting, key=lambda each: (each.samples_per_second < least, _ipus_if(least, each)))

    def _least_speed(self, speed: float) -> float:
        """Return the least speed at which a program counts as being as fast as one of that speed."""
        fastest = max((each.samples_per_second for each in self.search.fitting()), default=0.0)
        close = speed >= fastest * (1 - NEGLIGIBLE_GAIN)
        return (fastest if close else speed) * (1 - NEGLIGIBLE_GAIN)

    def _nearest(self) -> Fit | None:
        possible = [each for each in self.search.tried.values() if not each.refused and self.search.is_allowed(each)]
        return None if not possible else self._fit(min(possible, key=lambda each: each.share))

    def _binds(self, nearest: Fit | None) -> str:
        """Explain why the nearest program does not fit, or which limit leaves nothing to try."""
        if nearest is not None:
            return binding_text(nearest.profile, self.programs.of(nearest.candidate.setting))
        start, keep, processes = self.programs.start, self.limits.keep, self.programs.base.processes
        most = self.search.most_ipus() or self.search.most
        of_process = "" if processes == 1 else f" in each of its {processes} processes"
        if "split" in keep and start.ipus > most:
            return f"Its blocks have to stay as they are, and they need {counted(start.ipus, 'IPU')}{of_process}."
        if "replicas" in keep and start.replicas > most:
            return f"It has to keep its {start.replicas} replicas, and each needs an IPU{of_process}."
        if self.limits.ipus is not None and self.limits.ipus < processes:
            return f"It has {processes} processes, and each needs an IPU of its own."
        refused = Counter(each.refused for each in self.search.tried.values() if each.refused)
        return f"Every setting is refused: {refused.most_common(1)[0][0]}" if refused else ""

    def _confirmed(self, candidates: Iterable[Candidate]) -> Fit | None:
        """Return the first of the candidates that still fits after its module was captured with all changes.

        If that is refused for all of them, return the first as it was derived from the program.
        """
        derived: Fit | None = None
        for candidate, _ in zip(candidates, range(_MOST_CONFIRMED)):
            found = self._fit(candidate)
            if found.profile.verdict is Verdict.FITS and not found.refused:
                return found
            if found.profile.verdict is Verdict.FITS and derived is None:
                derived = found
        return derived

    def _cheapest_fit(self) -> Fit | None:
        fitting = self.search.fitting()
        least = min((each.ipus for each in fitting), default=0)
        return self._confirmed(sorted((each for each in fitting if each.ipus == least), key=self._price))

    def _price(self, candidate: Candidate) -> tuple[float, ...]:
        """Return the sort key of the cheapest: the least risk, the fewest changes, then the highest speed."""
        changes = self.programs.changes(candidate.setting)
        return sum(change.risk for change in changes), len(changes), -candidate.samples_per_second

    def _instead(self) -> tuple[Fit | None, Limits | None]:
        """Return the cheapest that fits with as few of the limits dropped as possible, and the limits that remain."""
        for limits in self.limits.wider(self.programs.base.system.name):
            wider = self.search.within(limits)
            wider.run(wants_fastest=False)
            found = Findings(wider)._cheapest_fit()
            if found is not None:
                return found, limits
        return None, None

    def _faster_loaders(self, fit: Fit) -> tuple[FasterLoader, ...]:
        """Return other loaders that make a program faster by more than next to nothing."""
        least = fit.samples_per_second / (1 - NEGLIGIBLE_GAIN)
        program = self.programs.of(fit.candidate.setting)
        found = [(other, samples_per_second(program, other.host)) for other in other_loaders(self.host)]
        return tuple(FasterLoader(other.change, other.line, speed) for other, speed in found if speed > least)

    def _elsewhere(self, fastest: Fit) -> Candidate | None:
        """Return the fastest program on a machine of the faster chip, unless the machine was chosen."""
        limits = self.limits
        if limits.is_chip_given or "machine" in limits.keep or self.programs.base.system.chip.name == _BOW:
            return None
        found = self.search.candidate(replace(fastest.candidate.setting, machine=_BOW))
        del self.search.tried[found.setting]
        return found if found.fits else None

    def _simplified(self, fastest: Candidate) -> Candidate:
        """Return the fastest that fits without the changes that bring it next to nothing."""
        least = self._least_speed(fastest.samples_per_second)
        now = fastest
        for simpler in self._simpler_ways():
            setting = simpler(now.setting)
            if setting != now.setting and self._is_possible(setting) and self.search.speed(setting) >= least:
                found = self.search.candidate(setting)
                now = found if found.fits else now
        return self._with_own_proportions(now)

    def _simpler_ways(self) -> tuple[Callable[[Setting], Setting], ...]:
        """Return what sets back one change of a setting after the other, the riskiest first."""
        start = self.programs.start

        def on_own_ipus(now: Setting) -> Setting:
            if start.all_ipus > now.all_ipus:
                return now
            return replace(now, ipus=start.ipus, replicas=start.replicas, balance=None)

        return (
            lambda now: replace(now, half=start.half),
            lambda now: replace(now, half_state=start.half_state),
            lambda now: replace(now, half_partials=start.half_partials),
            on_own_ipus,
            lambda now: replace(now, micro_batch=start.micro_batch),
            lambda now: replace(now, balance=None) if now.ipus == start.ipus else now,
            lambda now: replace(now, sharded=start.sharded),
            lambda now: replace(now, off_chip=start.off_chip),
            lambda now: replace(now, checkpoints=False),
            lambda now: replace(now, recomputation=start.recomputation),
            lambda now: replace(now, proportion=None),
        )

    def _is_possible(self, setting: Setting) -> bool:
        """Whether a program recomputes in a way that there is on so many IPUs."""
        ways = self.search.recomputations(setting.ipus, setting.replicas, setting.micro_batch)
        return (setting.recomputation, setting.checkpoints) in ways

    def _with_own_proportions(self, now: Candidate) -> Candidate:
        """Return a setting in which IPUs with room get back the program's own share of memory for temporary data."""
        if now.setting.proportion is None:
            return now
        for ipu in range(now.setting.ipus):
            setting = replace(now.setting, own_proportion=now.setting.own_proportion | {ipu})
            if self.search.speed(setting) > now.samples_per_second:
                found = self.search.candidate(setting)
                now = found if found.fits else now
        return now

    def _fit(self, candidate: Candidate) -> Fit:
        """Return a candidate with its code and profile, from the module captured with its changes if there is one."""
        if candidate not in self._fits:
            self._fits[candidate] = self._captured(candidate)
        return self._fits[candidate]

    def _captured(self, candidate: Candidate) -> Fit:
        programs, setting = self.programs, candidate.setting
        program = programs.of(setting)
        changed = programs.changed_options(setting)
        micro_batch = setting.micro_batch if setting.micro_batch != programs.start.micro_batch else None
        confirmed, refused = None, ""
        try:
            self.search.bar.capturing(setting)
            confirmed = programs.confirmed(setting)
        except (Error, AssertionError) as problem:
            refused = message_of(problem)
            self._refusals[refused] = None
        return Fit(
            candidate=candidate,
            changes=programs.changes(setting),
            code=code_of(programs.base, program, changed, micro_batch),
            profile=profile_program(confirmed or program, self.host),
            is_confirmed=confirmed is not None,
            refused=refused,
        )

    def _notes(self, elsewhere: Candidate | None) -> tuple[Note, ...]:
        """Return what another machine would make of the fastest, and what was left out."""
        found = [] if elsewhere is None else [other_machine(_BOW, elsewhere.samples_per_second)]
        if self.programs.source.again is None and "micro-batch" not in self.limits.keep:
            found.append(other_micro_batches())
        asked, processes = self.limits.ipus, self.programs.base.processes
        if asked is None:
            found.append(other_limits(self.search.most * processes))
        elif (used := _power_of_two(asked // processes)) != asked // processes != self.programs.start.all_ipus:
            found.append(fewer_ipus(asked, used * processes))
        if "precision" not in self.limits.keep and not self.programs.start.half:
            found.append(other_types())
        return tuple(found)


def _ipus_if(least: float, candidate: Candidate) -> int:
    """Return the IPUs of a candidate from that speed on; slower ones keep their order."""
    return candidate.ipus if candidate.samples_per_second >= least else 0


def _power_of_two(most: int) -> int:
    """Return the largest power of two up to a number from 1 on."""
    return 1 << (max(1, most).bit_length() - 1)
