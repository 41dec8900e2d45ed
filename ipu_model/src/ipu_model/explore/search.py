"""The search of `make_it_fit`: which settings it models, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice

from ipu_model.errors import Error
from ipu_model.explore.candidates import Candidate, Limits
from ipu_model.explore.search_bar import SearchBar
from ipu_model.explore.settings import Programs, Setting
from ipu_model.explore.split import Balance
from ipu_model.predict import memory_of_program, samples_per_second
from ipu_model.predict.host import HostWork
from ipu_model.predict.program import Execution, Recomputation

MOST_IPUS = 64
"""The most IPUs of one process."""
NEGLIGIBLE_GAIN = 0.01
"""The fastest program goes without changes, replicas and IPUs that bring less than this share of its speed."""
HOPELESS = 1.25
"""If the leanest setting of one split needs this share of a tile, other splits and ways to recompute are left out."""

PROPORTIONS = (None, 0.2, 0.1)


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
        self.start = self.candidate(programs.start)

    def within(self, limits: Limits) -> Search:
        """Return a search of the same programs within other limits, which knows what this one modelled."""
        other = Search(self.programs, self.host, limits, self.bar)
        other.tried, other._speeds = dict(self.tried), dict(self._speeds)
        return other

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

    # --- modelling

    def fitting(self) -> list[Candidate]:
        """Return what was modelled, is allowed and fits for certain."""
        return [each for each in self.tried.values() if each.fits and self.is_allowed(each)]

    def is_allowed(self, candidate: Candidate) -> bool:
        """Whether a candidate has no more IPUs than were asked for, which the program itself may have."""
        most = self.most_ipus()
        return most is None or candidate.setting.all_ipus <= most

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
            found = Candidate(setting, refused=message_of(problem), processes=processes)
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
        if (asked := self.most_ipus()) is not None:
            yield asked
            return
        most = max(self.programs.base.system.ipus // self.programs.base.processes, self.programs.start.all_ipus)
        yield most
        while not self._is_machine_fixed() and (most := most * 2) <= MOST_IPUS:
            yield most

    def most_ipus(self) -> int | None:
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
        """Return the micro-batches to try, the smallest first: the program's own, times and divided by powers of 2.

        Without the module, only the program's own can be modelled. No micro-batch may divide the global batch
        among so many replicas; then there is none to try.
        """
        own = self.programs.start.micro_batch
        found = {own}
        if self.programs.source.again is not None and "micro-batch" not in self.limits.keep:
            found |= {own * 2, *(own // 2**power for power in range(1, 7))}
        return tuple(sorted(each for each in found if each and self.programs.rows % (each * replicas) == 0))

    def _smallest(self, replicas: int, half: bool) -> tuple[int, ...]:
        """Return the smallest micro-batch that the module takes, or the smallest of all if it takes none."""
        rows = self._micro_batches(replicas)
        taken = (each for each in rows if self.programs.can_be_captured(each, half))
        return (*islice(taken, 1),) or rows[:1]

    def _up_to_largest(self, replicas: int, half: bool) -> tuple[int, ...]:
        """Return the micro-batches to try, up to the largest that the module takes."""
        rows = self._micro_batches(replicas)
        while rows and not self.programs.can_be_captured(rows[-1], half):
            rows = rows[:-1]
        return rows

    def recomputations(self, count: int, replicas: int, rows: int) -> tuple[tuple[Recomputation, bool], ...]:
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
            for micro_batch in self._smallest(replicas, half):
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
        for recomputation, checkpoints in reversed(self.recomputations(count, replicas, micro_batch)):
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
            proportion=PROPORTIONS[-1],
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
            lambda now: [replace(now, proportion=share) for share in PROPORTIONS],
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
        known = self.recomputations(now.ipus, now.replicas, now.micro_batch)
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
            speed, best = self.speed(row[-1]), max((each.samples_per_second for each in self.fitting()), default=0.0)
            as_good = best * (1 - NEGLIGIBLE_GAIN)
            if speed <= as_good:
                return
            group = row.pop()
            fewest = min(
                (each.setting.all_ipus for each in self.fitting() if each.samples_per_second >= as_good), default=0
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
            for micro_batch in self._up_to_largest(replicas, half):
                for recomputation, checkpoints in self.recomputations(count, replicas, micro_batch):
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
            for proportion in PROPORTIONS:
                yield replace(group, balance=balance, off_chip=off_chip, sharded=sharded, proportion=proportion)


def message_of(problem: Error | AssertionError) -> str:
    """Return what was refused, in the words of the front end."""
    return problem.message if isinstance(problem, Error) else str(problem)
