"""The search of `make_it_fit`: which settings it models, and in which order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from ipu_model.errors import Error
from ipu_model.explore.fit_result import Candidate, Limits
from ipu_model.explore.settings import Programs, Setting, Share, Split
from ipu_model.explore.split import Balance, repeated_blocks
from ipu_model.predict import memory_of_program, samples_per_second
from ipu_model.predict.host import HostWork
from ipu_model.predict.program import Execution, Recomputation

if TYPE_CHECKING:
    from tqdm import tqdm

MOST_IPUS = 64
"""The most IPUs of one process."""
NEGLIGIBLE_GAIN = 0.01
"""The fastest program goes without changes, replicas and IPUs that bring less than this share of its speed."""
HOPELESS = 1.25
"""If the leanest setting of one split needs this share of a tile, other splits and ways to recompute are left out."""
PROPORTIONS = (None, Share(0.2), Share(0.1))
RISKIEST_FIRST = (
    "half_precision", "half_optimiser_state", "half_partials", "replicas", "micro_batch", "split", "optimiser_sharded",
    "optimiser_off_chip", "checkpoints", "recomputation", "available_memory_proportion",
)  # fmt: skip
"""What a search sets back to the program's own value, one after the other."""


class Search:
    """One search: what was modelled so far, and the order in which it goes on.

    On each number of IPUs the leanest setting decides whether any fits. From the leanest that fits, it undoes changes,
    the riskiest first, to the cheapest. For the fastest, it takes groups of settings by their best speed until none can
    win.
    """

    def __init__(self, programs: Programs, host: HostWork, limits: Limits, bar: tqdm[Any]) -> None:
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
            own = self.programs.start.split.ipus
            powers = set() if "split" in self.limits.keep else {1 << bit for bit in range(most.bit_length())}
            lean = {count: self._leanest(count) for count in sorted(powers | {own}) if count <= most}
            fitting = {count: candidate for count, candidate in lean.items() if candidate and candidate.fits}
            if fitting:
                self._cheapest(fitting[min(fitting)].setting)
                if wants_fastest:
                    self._fastest(fitting, most)
                return

    def fitting(self) -> list[Candidate]:
        return [candidate for candidate in self.tried.values() if candidate.fits and self.is_allowed(candidate)]

    def is_allowed(self, candidate: Candidate) -> bool:
        """Whether a candidate has no more IPUs than were asked for, which the program itself may have."""
        most = self.most_ipus()
        return most is None or candidate.setting.ipus <= most

    def candidate(self, setting: Setting) -> Candidate:
        if setting not in self.tried:
            self.bar.update()
            self.bar.set_postfix_str(str(setting))
            processes = self.programs.base.processes
            try:
                memory = memory_of_program(self.programs.of(setting))
                share, speed = memory.share, self.speed(setting)
                self.tried[setting] = Candidate(setting, memory.verdict, share, speed, processes=processes)
            except (Error, AssertionError) as problem:
                self.tried[setting] = Candidate(setting, refused=message_of(problem), processes=processes)
        return self.tried[setting]

    def speed(self, setting: Setting) -> float:
        """Return the samples a second of a setting; 0 if it is refused."""
        if setting not in self._speeds:
            try:
                self._speeds[setting] = samples_per_second(self.programs.of(setting), self.host)
            except (Error, AssertionError):
                self._speeds[setting] = 0.0
        return self._speeds[setting]

    def most_ipus(self) -> int | None:
        """Return the most IPUs that one process may use, if the search was given a limit."""
        return None if self.limits.ipus is None else self.limits.ipus // self.programs.base.processes

    def _limits_to_try(self) -> Iterator[int]:
        """Yield the most IPUs to use: those asked for, or those of the machine, and more as long as nothing fits."""
        if (asked := self.most_ipus()) is not None:
            yield asked
            return
        base = self.programs.base
        most = max(base.system.ipus // base.processes, self.programs.start.ipus)
        yield most
        is_machine_fixed = self.limits.machine or "machine" in self.limits.keep
        while not is_machine_fixed and (most := most * 2) <= MOST_IPUS:
            yield most

    def _halves(self) -> tuple[bool, ...]:
        own = self.programs.start.half_precision
        return (own,) if own or "precision" in self.limits.keep else (False, True)

    def _splits(self, count: int) -> list[Split]:
        own = self.programs.start.split.ipus
        splits = [Split(count)] if count == own else []
        if "split" in self.limits.keep or count == own == 1:
            return splits
        return [*splits, *(Split(count, balance) for balance in (Balance if count > 1 else [Balance.TIME]))]

    def _with_splits(self, setting: Setting) -> list[Setting]:
        return [replace(setting, split=split) for split in self._splits(setting.split.ipus)]

    def _micro_batches(self, replicas: int) -> list[int]:
        """Return the micro-batches to try, the smallest first; without the module only the program's own."""
        own = self.programs.start.micro_batch
        rows = {own}
        if self.programs.source.again is not None and "micro-batch" not in self.limits.keep:
            rows |= {own * 2, *(own // 2**power for power in range(1, 7))}
        return sorted(count for count in rows if count and self.programs.rows % (count * replicas) == 0)

    def recomputations(self, count: int, replicas: int, rows: int) -> list[tuple[Recomputation, bool]]:
        """Return the ways to recompute, the fastest first, each with whether blocks are checkpoints."""
        own, base = self.programs.start.recomputation, self.programs.base
        if not base.training:
            return [(own, False)]
        piped = count > 1 and self.programs.execution(count, replicas, rows) is not Execution.SHARDED
        plain = Recomputation.PIPELINE if piped else Recomputation.STANDARD
        if own is Recomputation.PIPELINE and not piped:
            own = Recomputation.NONE
        ways = [(Recomputation.NONE, False), (own, False), (plain, False)]
        if repeated_blocks(base.step):
            ways += [(Recomputation.PIPELINE, True)] if piped else []
            ways.append((Recomputation.ALL, True))
        return list(dict.fromkeys(ways))

    def _group(
        self, count: int, replicas: int, micro_batch: int, half: bool, recomputation: Recomputation, checkpoints: bool
    ) -> Setting:
        start, keep, trains = self.programs.start, self.limits.keep, self.programs.base.training
        may_halve_state = trains and not {"optimiser", "precision"} & keep
        return Setting(
            micro_batch=micro_batch,
            split=self._splits(count)[0],
            replicas=replicas,
            recomputation=recomputation,
            checkpoints=checkpoints,
            half_precision=half,
            half_partials=start.half_partials or (half and "precision" not in keep),
            half_optimiser_state=start.half_optimiser_state or may_halve_state,
        )

    def _lean(self, setting: Setting) -> Setting:
        start, base = self.programs.start, self.programs.base
        streams = base.training and base.system.streaming_bytes_per_second > 0 and base.optimiser is not None
        can_shard = setting.replicas * base.processes > 1
        return replace(
            setting,
            optimiser_off_chip=start.optimiser_off_chip or streams,
            optimiser_sharded=start.optimiser_sharded or (streams and can_shard),
            available_memory_proportion=PROPORTIONS[-1],
        )

    def _leanest(self, count: int) -> Candidate | None:
        """Return the leanest setting on so many IPUs; with other types only if the program's own do not fit."""
        replicas = self.programs.start.replicas if "replicas" in self.limits.keep else 1
        best: Candidate | None = None
        for half in self._halves():
            rows = self._micro_batches(replicas)
            # The smallest micro-batch that the module takes, or the smallest of all if it takes none.
            taken = (size for size in rows if self.programs.can_be_captured(size, half))
            for micro_batch in (*islice(taken, 1),) or rows[:1]:
                for way in reversed(self.recomputations(count, replicas, micro_batch)):
                    group = self._group(count, replicas, micro_batch, half, *way)
                    candidate = self._leanest_split(self._lean(group))
                    if not candidate.refused and (best is None or candidate.share < best.share):
                        best = candidate
                    if candidate.fits:
                        break
            if best is not None and best.fits:
                return best
        return best

    def _leanest_split(self, setting: Setting) -> Candidate:
        best: Candidate | None = None
        for split in reversed(self._with_splits(setting)):
            candidate = self.candidate(split)
            best = candidate if best is None or candidate.share < best.share else best
            if best.fits or (not candidate.refused and candidate.share > HOPELESS):
                break
        assert best is not None
        return best

    def _cheapest(self, now: Setting) -> None:
        """Model what is cheapest on the fewest IPUs: from the leanest back to the program, while it still fits."""
        for name in RISKIEST_FIRST:
            for setting in self._ways_back(now, name):
                if setting == now:
                    break
                if self.candidate(setting).fits:
                    now = setting
                    break

    def _ways_back(self, now: Setting, name: str) -> Iterator[Setting]:
        """Yield the settings to try that set one option back, that with the program's own value first."""
        if name == "micro_batch":
            for rows in self._micro_batches(now.replicas):  # the largest that fits, up to the program's own
                if now.micro_batch < rows <= self.programs.start.micro_batch:
                    larger = replace(now, micro_batch=rows)
                    if not self.candidate(larger).fits:
                        break
                    now = larger
            yield now
        elif name == "split":
            yield from self._with_splits(now)
        elif name == "recomputation":
            ways = self.recomputations(now.split.ipus, now.replicas, now.micro_batch)
            modes = (mode for mode, checkpoints in ways if checkpoints == now.checkpoints)
            yield from (replace(now, recomputation=mode) for mode in modes)
        elif name == "available_memory_proportion":
            yield from (replace(now, available_memory_proportion=share) for share in PROPORTIONS)
        elif name != "replicas":  # a lean setting has the fewest
            yield replace(now, **{name: getattr(self.programs.start, name)})

    def _fastest(self, counts: Iterable[int], most: int) -> None:
        """Model groups by their best speed until none can win; smaller micro-batches, slow to capture, wait."""
        rows: dict[Setting, list[Setting]] = {}
        for count in counts:
            for group in self._groups(count, most):
                rows.setdefault(replace(group, micro_batch=0), []).append(group)
        waiting = list(rows.values())
        while waiting:
            row = max(waiting, key=lambda groups: self.speed(groups[-1]))
            speed, best = self.speed(row[-1]), max((one.samples_per_second for one in self.fitting()), default=0.0)
            as_good = best * (1 - NEGLIGIBLE_GAIN)
            if speed <= as_good:
                return
            group = row.pop()
            fewest = min((one.setting.ipus for one in self.fitting() if one.samples_per_second >= as_good), default=0)
            wanted = as_good if group.ipus < fewest else best
            if speed > wanted and not self._is_hopeless(group):
                self._fastest_of(group, wanted)
            waiting = [groups for groups in waiting if groups]

    def _groups(self, count: int, most: int) -> Iterator[Setting]:
        half = self._halves()[-1]
        own = self.programs.start.replicas
        fills = 1 << (max(1, most // count).bit_length() - 1)
        numbers = (own,) if "replicas" in self.limits.keep else (fills, own, 1)
        for replicas in dict.fromkeys(number for number in numbers if count * number <= most):
            rows = self._micro_batches(replicas)
            while rows and not self.programs.can_be_captured(rows[-1], half):
                rows = rows[:-1]
            for micro_batch in rows:
                for way in self.recomputations(count, replicas, micro_batch):
                    yield self._group(count, replicas, micro_batch, half, *way)

    def _is_hopeless(self, group: Setting) -> bool:
        """Whether what was modelled rules a group out: half the micro-batch needs at least half the memory."""
        own, wanted = group.recomputation, group.micro_batch
        for mode in (own, Recomputation.PIPELINE if group.checkpoints else own):
            for rows in self._micro_batches(group.replicas):
                lean = self._lean(replace(group, micro_batch=rows, recomputation=mode))
                known = [self.tried[setting] for setting in self._with_splits(lean) if setting in self.tried]
                if not known or any(candidate.refused for candidate in known):
                    continue
                least = min(candidate.share for candidate in known)
                is_larger = rows >= wanted and least * wanted / rows > HOPELESS
                if is_larger or (rows <= wanted and mode is own and least > HOPELESS):
                    return True
        return False

    def _fastest_of(self, group: Setting, wanted: float) -> None:
        """Model a group from its fastest setting on, until one fits or the others are no faster than is wanted."""
        lean = self._lean(group)
        if not self._leanest_split(lean).fits:
            return
        # Optimiser state can be off the chip or not, shared out over replicas or not.
        off_chip, sharded = lean.optimiser_off_chip, lean.optimiser_sharded
        members: list[Setting] = []
        for off, shared in dict.fromkeys(((False, False), (off_chip, False), (off_chip, sharded))):
            place: dict[str, Any] = {"optimiser_off_chip": off, "optimiser_sharded": shared}
            if self._leanest_split(replace(lean, **place)).fits:
                for setting in self._with_splits(replace(group, **place)):
                    members += (replace(setting, available_memory_proportion=share) for share in PROPORTIONS)
        for setting in sorted(members, key=self.speed, reverse=True):
            if self.speed(setting) <= wanted or self.candidate(setting).fits:
                return


def message_of(problem: Error | AssertionError) -> str:
    return problem.message if isinstance(problem, Error) else str(problem)
