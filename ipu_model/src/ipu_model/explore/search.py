"""The search of `make_it_fit`: which settings it models, and in which order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from ipu_model.errors import Error
from ipu_model.explore.binding import binding_text
from ipu_model.explore.candidates import Candidate, FasterLoader, Fit, Limits
from ipu_model.explore.changed_lines import code_of
from ipu_model.explore.fit_result import FitResult
from ipu_model.explore.notes import Note, fewer_ipus, other_limits, other_machine, other_micro_batches, other_types
from ipu_model.explore.other_loaders import other_loaders
from ipu_model.explore.search_bar import SearchBar
from ipu_model.explore.settings import Programs, Setting
from ipu_model.explore.split import Balance
from ipu_model.predict import memory_of_program, profile_program, samples_per_second
from ipu_model.predict.host import HostWork
from ipu_model.predict.program import Execution, Recomputation
from ipu_model.predict.verdict import Verdict
from ipu_model.report.quantities import counted

MOST_IPUS = 64
"""The most IPUs of one process."""
NEGLIGIBLE_GAIN = 0.01
"""The fastest program goes without changes, replicas and IPUs that bring less than this share of its speed."""
HOPELESS = 1.25
"""If the leanest setting of one split needs this share of a tile, other splits and ways to recompute are left out."""

_PROPORTIONS = (None, 0.2, 0.1)
_MOST_CONFIRMED = 4
_BOW = "Bow"


class Search:
    """One search: what was modelled so far, and the order in which it goes on.

    For each number of IPUs it first models the leanest setting: if that does not fit, nothing else on as many IPUs
    does. From the leanest that fits it goes back, the riskiest change first, as long as the program still fits: what is
    left is the cheapest. For the fastest, it takes groups of settings (a micro-batch, a way to recompute) in the order
    of their best speed, and stops at the first group that cannot beat what was found.
    """

    def __init__(self, programs: Programs, host: HostWork, limits: Limits, bar: SearchBar) -> None:
        self.programs, self.host, self.limits, self.bar = programs, host, limits, bar
        self.tried: dict[Setting, Candidate] = {}
        self.most = 0
        """The most IPUs of one process that were searched."""
        self._speeds: dict[Setting, float] = {}
        self._refusals: dict[str, None] = {}
        self.start = self.candidate(programs.start)

    def run(self, *, wants_fastest: bool = True) -> None:
        """Search until the fastest and the cheapest are known, with more IPUs as long as nothing fits."""
        for most in self._limits_to_try():
            self.most = most
            lean = {count: self._leanest(count) for count in self._counts(most)}
            fitting = {count: each for count, each in lean.items() if each is not None and each.fits}
            if fitting:
                self._cheapest(fitting)
                if wants_fastest:
                    self._fastest(fitting, most)
                return

    # --- the result

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
            start=self.start,
            fastest=fastest,
            cheapest=cheapest,
            nearest=nearest,
            tried=tuple(self.tried.values()),
            notes=self._notes(elsewhere),
            binds="" if fastest is not None else self._binds(nearest),
            instead=instead,
            instead_limits=wider,
            elsewhere=elsewhere,
            loaders=() if best is None else self._faster_loaders(best),
            limits=self.limits,
            refusals=tuple(self._refusals),
        )

    def _fitting(self) -> list[Candidate]:
        return [each for each in self.tried.values() if each.fits and self._is_allowed(each)]

    def _is_allowed(self, candidate: Candidate) -> bool:
        """Whether a candidate has no more IPUs than were asked for, which the program itself may have."""
        most = self._most_ipus_asked_for()
        return most is None or candidate.setting.all_ipus <= most

    def _fastest_first(self) -> list[Candidate]:
        """Return what fits by its speed; of those that are next to as fast as the fastest, that on the fewest IPUs."""
        fitting = sorted(self._fitting(), key=lambda each: -each.samples_per_second)
        least = self._least_speed(fitting[0].samples_per_second) if fitting else 0.0
        return sorted(fitting, key=lambda each: (each.samples_per_second < least, _ipus_if(least, each)))

    def _least_speed(self, speed: float) -> float:
        """Return from which speed on a program is as good as one of that speed."""
        fastest = max((each.samples_per_second for each in self._fitting()), default=0.0)
        close = speed >= fastest * (1 - NEGLIGIBLE_GAIN)
        return (fastest if close else speed) * (1 - NEGLIGIBLE_GAIN)

    def _nearest(self) -> Fit | None:
        possible = [each for each in self.tried.values() if not each.refused and self._is_allowed(each)]
        return None if not possible else self._fit(min(possible, key=lambda each: each.share))

    def _binds(self, nearest: Fit | None) -> str:
        """Return what keeps the nearest from fitting, or the rule by which there is nothing to try."""
        if nearest is not None:
            return binding_text(nearest.profile, self.programs.of(nearest.candidate.setting))
        start, keep, processes = self.programs.start, self.limits.keep, self.programs.base.processes
        most = self._most_ipus_asked_for() or self.most
        of_process = "" if processes == 1 else f" in each of its {processes} processes"
        if "split" in keep and start.ipus > most:
            return f"Its blocks stay, and they need {counted(start.ipus, 'IPU')}{of_process}."
        if "replicas" in keep and start.replicas > most:
            return f"Its {start.replicas} replicas stay, and they need an IPU each{of_process}."
        if self.limits.ipus is not None and self.limits.ipus < processes:
            return f"It has {processes} processes, and each needs an IPU of its own."
        refused = Counter(each.refused for each in self.tried.values() if each.refused)
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
        fitting = self._fitting()
        least = min((each.ipus for each in fitting), default=0)
        return self._confirmed(sorted((each for each in fitting if each.ipus == least), key=self._price))

    def _price(self, candidate: Candidate) -> tuple[float, ...]:
        """Return what the cheapest has least of: risk and number of changes, then time."""
        changes = self.programs.changes(candidate.setting)
        return sum(change.risk for change in changes), len(changes), -candidate.samples_per_second

    def _instead(self) -> tuple[Fit | None, Limits | None]:
        """Return the cheapest that fits with as few of the limits dropped as possible, and the limits that remain."""
        for limits in self.limits.wider(self.programs.base.system.name):
            wider = Search(self.programs, self.host, limits, self.bar)
            wider.tried, wider._speeds = dict(self.tried), dict(self._speeds)
            wider.run(wants_fastest=False)
            found = wider._cheapest_fit()
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
        found = self.candidate(replace(fastest.candidate.setting, machine=_BOW))
        del self.tried[found.setting]
        return found if found.fits else None

    def _simplified(self, fastest: Candidate) -> Candidate:
        """Return the fastest that fits without the changes that bring it next to nothing."""
        least = self._least_speed(fastest.samples_per_second)
        now = fastest
        for simpler in self._simpler_ways():
            setting = simpler(now.setting)
            if setting != now.setting and self._is_possible(setting) and self.speed(setting) >= least:
                found = self.candidate(setting)
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
        ways = self._recomputations(setting.ipus, setting.replicas, setting.micro_batch)
        return (setting.recomputation, setting.checkpoints) in ways

    def _with_own_proportions(self, now: Candidate) -> Candidate:
        """Return a setting in which IPUs with room get back the program's own share of memory for temporary data."""
        if now.setting.proportion is None:
            return now
        for ipu in range(now.setting.ipus):
            setting = replace(now.setting, own_proportion=now.setting.own_proportion | {ipu})
            if self.speed(setting) > now.samples_per_second:
                found = self.candidate(setting)
                now = found if found.fits else now
        return now

    def _fit(self, candidate: Candidate) -> Fit:
        """Return a candidate with its code and profile, from the module captured with its changes if there is one."""
        programs, setting = self.programs, candidate.setting
        program = programs.of(setting)
        changed = programs.changed_options(setting)
        micro_batch = setting.micro_batch if setting.micro_batch != programs.start.micro_batch else None
        confirmed, refused = None, ""
        try:
            self.bar.capturing(setting)
            confirmed = programs.confirmed(setting)
        except (Error, AssertionError) as problem:
            refused = _message(problem)
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
            found.append(other_limits(self.most * processes))
        elif (used := _power_of_two(asked // processes)) != asked // processes != self.programs.start.all_ipus:
            found.append(fewer_ipus(asked, used * processes))
        if "precision" not in self.limits.keep and not self.programs.start.half:
            found.append(other_types())
        return tuple(found)

    # --- modelling

    def candidate(self, setting: Setting) -> Candidate:
        """Model a setting, or say why it is refused."""
        known = self.tried.get(setting)
        if known is not None:
            return known
        self.bar.modelling(setting)
        processes = self.programs.base.processes
        try:
            program = self.programs.of(setting)
            memory = memory_of_program(program)
            speed = self.speed(setting)
        except (Error, AssertionError) as problem:
            found = Candidate(setting, refused=_message(problem), processes=processes)
        else:
            share = memory.max_tile_bytes / memory.tile_bytes
            found = Candidate(setting, memory.verdict, share, speed, processes=processes)
        self.tried[setting] = found
        return found

    def speed(self, setting: Setting) -> float:
        """Return the samples a second of a setting; 0 if it is refused."""
        if setting not in self._speeds:
            try:
                self._speeds[setting] = samples_per_second(self.programs.of(setting), self.host)
            except (Error, AssertionError):
                self._speeds[setting] = 0.0
        return self._speeds[setting]

    # --- the settings to try

    def _limits_to_try(self) -> Iterator[int]:
        """Yield the most IPUs to use: those asked for, or those of the machine, and more as long as nothing fits."""
        if (asked := self._most_ipus_asked_for()) is not None:
            yield asked
            return
        most = max(self.programs.base.system.ipus // self.programs.base.processes, self.programs.start.all_ipus)
        yield most
        while not self._is_machine_fixed() and (most := most * 2) <= MOST_IPUS:
            yield most

    def _most_ipus_asked_for(self) -> int | None:
        """Return the most IPUs that one process may use if the search was given a limit."""
        return None if self.limits.ipus is None else self.limits.ipus // self.programs.base.processes

    def _is_machine_fixed(self) -> bool:
        return bool(self.limits.machine) or "machine" in self.limits.keep

    def _counts(self, most: int) -> tuple[int, ...]:
        """Return the numbers of IPUs of a replica that a search tries: powers of two, and the program's own."""
        start = self.programs.start
        if "split" in self.limits.keep:
            return (start.ipus,) if start.ipus <= most else ()
        powers = {1 << bit for bit in range(most.bit_length())}
        return tuple(sorted(count for count in powers | {start.ipus} if count <= most))

    def _halves(self) -> tuple[bool, ...]:
        start = self.programs.start
        return (start.half,) if start.half or "precision" in self.limits.keep else (False, True)

    def _may_halve_state(self) -> bool:
        """Whether the types of the optimiser's state may change, which are a part of the precision, too."""
        return self.programs.base.training and not {"optimiser", "precision"} & self.limits.keep

    def _balances(self, count: int) -> tuple[Balance | None, ...]:
        start = self.programs.start
        own: tuple[Balance | None, ...] = (None,) if count == start.ipus else ()
        if "split" in self.limits.keep or count == start.ipus == 1:
            return own
        return (*own, Balance.TIME, Balance.MEMORY) if count > 1 else (Balance.TIME,)

    def _micro_batches(self, replicas: int) -> tuple[int, ...]:
        """Return the micro-batches to try, the smallest first: the program's own, times and divided by powers of 2."""
        start = self.programs.start
        if self.programs.source.again is None or "micro-batch" in self.limits.keep:
            return (start.micro_batch,)
        found = {start.micro_batch}
        for count in (start.micro_batch // 2**power for power in range(1, 7)):
            found.add(count)
        found.add(start.micro_batch * 2)
        return tuple(sorted(each for each in found if each and self.programs.rows % (each * replicas) == 0))

    def _recomputations(self, count: int, replicas: int, rows: int) -> tuple[tuple[Recomputation, bool], ...]:
        """Return the ways to recompute, the fastest first, each with whether blocks are checkpoints."""
        start = self.programs.start
        if not self.programs.base.training:
            return ((start.recomputation, False),)
        piped = count > 1 and self.programs.execution(Setting(count, replicas, rows)) is not Execution.SHARDED
        own = start.recomputation if piped or start.recomputation is not Recomputation.PIPELINE else Recomputation.NONE
        plain = Recomputation.PIPELINE if piped else Recomputation.STANDARD
        found = [(Recomputation.NONE, False), (own, False), (plain, False)]
        if self.programs.has_blocks():
            found += [(Recomputation.PIPELINE, True)] if piped else []
            found.append((Recomputation.ALL, True))
        return tuple(dict.fromkeys(found))

    def _can_shard(self, replicas: int) -> bool:
        return replicas * self.programs.base.processes > 1

    def _replicas(self, count: int, most: int) -> tuple[int, ...]:
        start = self.programs.start
        if "replicas" in self.limits.keep:
            return (start.replicas,) if count * start.replicas <= most else ()
        fills = 1 << (max(1, most // count).bit_length() - 1)
        return tuple(dict.fromkeys(each for each in (fills, start.replicas, 1) if count * each <= most))

    def _fewest_replicas(self) -> int:
        return self.programs.start.replicas if "replicas" in self.limits.keep else 1

    # --- the leanest and the cheapest

    def _leanest(self, count: int) -> Candidate | None:
        """Return the leanest setting on so many IPUs; with other types only if the program's own do not fit."""
        replicas = self._fewest_replicas()
        best: Candidate | None = None
        for half in self._halves():
            for micro_batch in self._micro_batches(replicas)[:1]:
                for candidate in self._lean_candidates(count, replicas, micro_batch, half):
                    if candidate.refused:
                        continue
                    if best is None or candidate.share < best.share:
                        best = candidate
            if best is not None and best.fits:
                return best
        return best

    def _lean_candidates(self, count: int, replicas: int, micro_batch: int, half: bool) -> Iterator[Candidate]:
        """Yield what may be the leanest settings, until one fits."""
        for recomputation, checkpoints in reversed(self._recomputations(count, replicas, micro_batch)):
            setting = Setting(
                count, replicas, micro_batch, None, half, recomputation=recomputation, checkpoints=checkpoints
            )
            found = self._leanest_split(self._lean(setting))
            yield found
            if found.fits:
                return

    def _leanest_split(self, setting: Setting) -> Candidate:
        """Return a setting with the split that needs the least memory, of those that are worth modelling."""
        best: Candidate | None = None
        for balance in reversed(self._balances(setting.ipus)):
            found = self.candidate(replace(setting, balance=balance))
            best = found if best is None or found.share < best.share else best
            if best.fits or (not found.refused and found.share > HOPELESS):
                break
        assert best is not None
        return best

    def _lean(self, setting: Setting) -> Setting:
        """Return a setting with everything that saves memory and depends on nothing else."""
        start, keep, trains = self.programs.start, self.limits.keep, self.programs.base.training
        base = self.programs.base
        streams = trains and base.system.streaming_bytes_per_second > 0 and base.optimiser is not None
        return replace(
            setting,
            half_partials=start.half_partials or (setting.half and "precision" not in keep),
            half_state=start.half_state or self._may_halve_state(),
            off_chip=start.off_chip or streams,
            sharded=start.sharded or (streams and self._can_shard(setting.replicas)),
            proportion=_PROPORTIONS[-1],
        )

    def _cheapest(self, fitting: Mapping[int, Candidate]) -> None:
        """Model what is cheapest on the fewest IPUs: from the leanest back to the program, while it still fits."""
        now = fitting[min(fitting)].setting
        for settings in self._ways_back():
            for setting in settings(now):
                if setting == now:
                    break
                if self.candidate(setting).fits:
                    now = setting
                    break

    def _ways_back(self) -> tuple[Callable[[Setting], Iterable[Setting]], ...]:
        """Return what sets back one change of a setting after the other, the riskiest first.

        Each way yields the settings to try, that with the program's own value first.
        """
        start = self.programs.start
        return (
            lambda now: [replace(now, half=start.half)],
            lambda now: [replace(now, half_state=start.half_state)],
            lambda now: [replace(now, half_partials=start.half_partials)],
            lambda now: [self._grown(now)],
            lambda now: [replace(now, balance=balance) for balance in self._balances(now.ipus)],
            lambda now: [replace(now, sharded=start.sharded)],
            lambda now: [replace(now, off_chip=start.off_chip)],
            lambda now: [replace(now, checkpoints=False)],
            lambda now: [replace(now, recomputation=mode) for mode in self._modes(now)],
            lambda now: [replace(now, proportion=share) for share in _PROPORTIONS],
        )

    def _grown(self, now: Setting) -> Setting:
        """Return a setting with the largest micro-batch that fits, up to the program's own."""
        for rows in self._micro_batches(now.replicas):
            if now.micro_batch < rows <= self.programs.start.micro_batch:
                larger = replace(now, micro_batch=rows)
                if not self.candidate(larger).fits:
                    break
                now = larger
        return now

    def _modes(self, now: Setting) -> list[Recomputation]:
        known = self._recomputations(now.ipus, now.replicas, now.micro_batch)
        return [mode for mode, checkpoints in known if checkpoints == now.checkpoints]

    # --- the fastest

    def _fastest(self, fitting: Mapping[int, Candidate], most: int) -> None:
        """Model groups of settings by their best speed, until no group can be faster than what fits.

        A group on fewer IPUs need only be next to as fast. Groups that differ in their micro-batch only wait in one
        row, the largest first: smaller ones are as a rule slower, and to know how fast they are, the module has to be
        captured.
        """
        rows: dict[Setting, list[Setting]] = {}
        for count in fitting:
            for group in self._groups(count, most):
                rows.setdefault(replace(group, micro_batch=0), []).append(group)
        waiting = list(rows.values())
        while waiting:
            row = max(waiting, key=lambda groups: self.speed(groups[-1]))
            speed, best = self.speed(row[-1]), max((each.samples_per_second for each in self._fitting()), default=0.0)
            as_good = best * (1 - NEGLIGIBLE_GAIN)
            if speed <= as_good:
                return
            group = row.pop()
            fewest = min(
                (each.setting.all_ipus for each in self._fitting() if each.samples_per_second >= as_good), default=0
            )
            wanted = as_good if group.all_ipus < fewest else best
            if speed > wanted and not self._is_hopeless(group):
                self._fastest_of(group, wanted)
            waiting = [groups for groups in waiting if groups]

    def _is_hopeless(self, group: Setting) -> bool:
        """Whether what was modelled shows that a group cannot fit.

        Memory grows at most in proportion to the micro-batch, so that half of it needs at least half the memory. Where
        checkpoints of a pipeline are far too large, so are those with the last stage recomputed, too.
        """
        for name in (group.recomputation, Recomputation.PIPELINE if group.checkpoints else group.recomputation):
            for rows in self._micro_batches(group.replicas):
                lean = self._lean(replace(group, micro_batch=rows, recomputation=name))
                known = [self.tried[each] for each in self._splits_of(lean) if each in self.tried]
                if not known or any(each.refused for each in known):
                    continue
                least = min(each.share for each in known)
                if rows >= group.micro_batch and least * group.micro_batch / rows > HOPELESS:
                    return True
                if rows <= group.micro_batch and name is group.recomputation and least > HOPELESS:
                    return True
        return False

    def _splits_of(self, setting: Setting) -> Iterator[Setting]:
        return (replace(setting, balance=balance) for balance in self._balances(setting.ipus))

    def _groups(self, count: int, most: int) -> Iterator[Setting]:
        """Yield the fastest setting of each group: a micro-batch and a way to recompute on so many IPUs."""
        keep = self.limits.keep
        half = self._halves()[-1]
        for replicas in self._replicas(count, most):
            for micro_batch in self._micro_batches(replicas):
                for recomputation, checkpoints in self._recomputations(count, replicas, micro_batch):
                    yield Setting(
                        count,
                        replicas,
                        micro_batch,
                        self._balances(count)[0],
                        half,
                        half_partials=self.programs.start.half_partials or (half and "precision" not in keep),
                        half_state=self.programs.start.half_state or self._may_halve_state(),
                        off_chip=False,
                        sharded=False,
                        recomputation=recomputation,
                        checkpoints=checkpoints,
                    )

    def _fastest_of(self, group: Setting, wanted: float) -> None:
        """Model a group from its fastest setting on, until one fits or the others are no faster than is wanted."""
        if not self._leanest_split(self._lean(group)).fits:
            return
        places = [place for place in self._places(group) if self._can_fit(group, place)]
        members = [each for place in places for each in self._at(group, place)]
        for setting in sorted(members, key=self.speed, reverse=True):
            if self.speed(setting) <= wanted or self.candidate(setting).fits:
                return

    def _places(self, group: Setting) -> tuple[tuple[bool, bool], ...]:
        """Return where optimiser state can be: off the chip or not, shared out over replicas or not."""
        lean = self._lean(group)
        return tuple(dict.fromkeys(((False, False), (lean.off_chip, False), (lean.off_chip, lean.sharded))))

    def _can_fit(self, group: Setting, place: tuple[bool, bool]) -> bool:
        """Whether the leanest setting with optimiser state in that place fits."""
        off_chip, sharded = place
        lean = replace(self._lean(group), off_chip=off_chip, sharded=sharded)
        return self._leanest_split(lean).fits

    def _at(self, group: Setting, place: tuple[bool, bool]) -> Iterator[Setting]:
        off_chip, sharded = place
        for balance in self._balances(group.ipus):
            for proportion in _PROPORTIONS:
                yield replace(group, balance=balance, off_chip=off_chip, sharded=sharded, proportion=proportion)


def _ipus_if(least: float, candidate: Candidate) -> int:
    """Return the IPUs of a candidate from that speed on; slower ones keep their order."""
    return candidate.ipus if candidate.samples_per_second >= least else 0


def _message(problem: Error | AssertionError) -> str:
    return problem.message if isinstance(problem, Error) else str(problem)


def _power_of_two(most: int) -> int:
    """Return the largest power of two up to a number from 1 on."""
    return 1 << (max(1, most).bit_length() - 1)
