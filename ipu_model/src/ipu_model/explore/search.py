"""The search of `make_it_fit`: which settings it models, and in which order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import product
from typing import TYPE_CHECKING, Any

from ipu_model.errors import Error
from ipu_model.explore.blocks import repeated_blocks
from ipu_model.explore.fit_result import Candidate, Limits
from ipu_model.explore.placement import SHARES, Plan, Stages
from ipu_model.explore.search_points import Programs, Setting, Split
from ipu_model.predict import check_machine, memory_of_program
from ipu_model.predict.host import HostWork, call_time
from ipu_model.predict.program import Execution, Program, Recomputation
from ipu_model.predict.time import time_of

if TYPE_CHECKING:
    from tqdm import tqdm

MOST_IPUS = 64
"""The most IPUs of one process."""
NEGLIGIBLE_GAIN = 0.01
"""The fastest program goes without changes, replicas and IPUs that bring less than this share of its speed."""
UNSURE, FIRST_UNSURE = 0.03, 0.1
"""What is estimated to be slower than the best by more than this share is not modelled; the first of its group."""
HOPELESS = 1.25
"""What is estimated to need this share of the memory that there may be is not modelled."""
MOST_OPS, FEWEST, MOST = 600_000, 60, 400
"""The budget of a search: programs with so many ops together, but at least so many programs and at most so many."""
TRIES = 5
"""The plans of one group that are modelled, each corrected by the ones before."""
PATIENCE = 2
"""So many micro-batches in a row may bring nothing before the next larger or smaller ones are left out."""
NEAR = 3
"""So many groups are modelled once more, with no room to spare, too."""
CALLS_IN_ONE = (2, 4, 8, 16, 32)
RISKIEST_FIRST = (
    "half_precision", "half_optimiser_state", "half_partials", "micro_batch", "split", "optimiser_sharded",
    "optimiser_off_chip", "checkpoints", "recomputation", "available_memory_proportion",
)  # fmt: skip
"""What a search sets back to the program's own value, one after the other."""
_EXACTLY = ("split", "available_memory_proportion")
"""What has no other plans once it is set back."""


class Search:
    """One search: what was modelled so far, and the order in which it goes on.

    A group is a setting without cuts and shares of memory, for which `Stages` has the most promising plans. On each
    number of IPUs the leanest group decides whether any fits. From the leanest that fits, the search undoes changes,
    the riskiest first, to the cheapest. For the fastest, it models plans of the most promising group, until none
    promises more than the best that fits, and then of other micro-batches, as long as they make it faster.
    """

    def __init__(self, programs: Programs, host: HostWork, limits: Limits, bar: tqdm[Any]) -> None:
        self.programs, self.host, self.limits, self.bar = programs, host, limits, bar
        self.tried: dict[Setting, Candidate] = {}
        self.most = 0
        """The most IPUs of one process that were searched."""
        self.budget = min(MOST, max(FEWEST, MOST_OPS // max(1, len(programs.base.step.ops))))
        """How many programs there may be in `tried` when the search for the fastest ends."""
        self._timed: dict[Setting, tuple[float, tuple[float, ...]]] = {}
        self._stages: dict[Setting, Stages | None] = {}
        self._corrected: dict[object, Stages] = {}
        self._promises_kept: dict[object, float] = {}
        self._plans: dict[Setting, tuple[Setting, Plan]] = {}
        self.start = self.candidate(programs.start)

    def within(self, limits: Limits) -> Search:
        """Return a search of the same programs within other limits, which knows what this one modelled."""
        other = copy(self)
        other.limits, other.tried, other._plans = limits, dict(self.tried), dict(self._plans)
        return other

    def run(self, *, wants_fastest: bool = True) -> None:
        """Search until the fastest and the cheapest are known, with more IPUs as long as nothing fits."""
        for most in self._limits_to_try():
            self.most = most
            own = self.programs.start.split.ipus
            powers = set() if "split" in self.limits.keep else {1 << bit for bit in range(most.bit_length())}
            lean = {count: self._leanest(count) for count in sorted(powers | {own}) if count <= most}
            fitting = {count: candidate for count, candidate in lean.items() if candidate}
            if fitting:
                self.undone(fitting[min(fitting)])
                if wants_fastest:
                    self._fastest(fitting, most)
                return

    def fitting(self) -> list[Candidate]:
        return [one for one in self.tried.values() if self.has_room(one) and self.is_allowed(one)]

    def has_room(self, candidate: Candidate) -> bool:
        return self.limits.allow(candidate.share)

    def is_allowed(self, candidate: Candidate) -> bool:
        """Whether a candidate has no more IPUs than were asked for, which the program itself may have."""
        return candidate.setting.ipus <= self.most_ipus

    def candidate(self, setting: Setting) -> Candidate:
        if setting not in self.tried:
            self.bar.update()
            self.bar.set_postfix_str(str(setting))
            processes = self.programs.base.processes
            try:
                memory = memory_of_program(self.programs.of(setting))
                speed, cycles = self._time(setting)
                loads = tuple(zip(cycles, (ipu.max_tile_bytes for ipu in memory)))
                self.tried[setting] = Candidate(
                    setting, memory.verdict, memory.share, speed, loads, processes=processes
                )
            except Error as problem:
                self.tried[setting] = Candidate(setting, refused=problem.message, processes=processes)
        return self.tried[setting]

    def speed(self, setting: Setting) -> float:
        """Return the samples a second of a setting; 0 if it is refused."""
        try:
            return self._time(setting)[0]
        except Error:
            return 0.0

    def _time(self, setting: Setting) -> tuple[float, tuple[float, ...]]:
        """Return the samples a second, and the cycles of a micro-batch in which each IPU does not wait."""
        if setting not in self._timed:
            program = self.programs.of(setting)
            check_machine(program)
            time = time_of(program)
            call = call_time(program, self.host, program.system.chip.seconds(time.device_cycles))
            steps = program.batching.steps
            busy = tuple((cycles.total - cycles.external_sync) / steps for cycles in time.cycles)
            self._timed[setting] = program.samples_per_call / call.total, busy
        return self._timed[setting]

    @property
    def most_ipus(self) -> float:
        """The most IPUs that one process may use, if the search was given a limit."""
        return math.inf if self.limits.ipus is None else self.limits.ipus // self.programs.base.processes

    def _limits_to_try(self) -> Iterator[int]:
        """Yield the most IPUs to use: those asked for, or those of the machine, and more as long as nothing fits."""
        if self.limits.ipus is not None:
            yield int(self.most_ipus)
            return
        base = self.programs.base
        most = max(base.system.ipus // base.processes, self.programs.start.ipus)
        yield most
        is_machine_fixed = self.limits.machine or "machine" in self.limits.keep
        while not is_machine_fixed and (most := most * 2) <= MOST_IPUS:
            yield most

    # --- groups: what is decided before cuts and shares of memory

    def _halves(self) -> tuple[bool, ...]:
        own = self.programs.start.half_precision
        return (own,) if own or "precision" in self.limits.keep else (False, True)

    def _micro_batches(self, replicas: int) -> list[int]:
        """Return the micro-batches to try, the smallest first; without the module only the program's own."""
        own = self.programs.start.micro_batch
        rows = {own}
        if self.programs.source.again is not None and "micro-batch" not in self.limits.keep:
            rows |= {*(own << power for power in range(1, 4)), *(own >> power for power in range(1, 7))}
        return sorted(count for count in rows if count and self.programs.rows % (count * replicas) == 0)

    def recomputations(self, split: Split, replicas: int, rows: int) -> list[tuple[Recomputation, bool]]:
        """Return the ways to recompute, the fastest first, each with whether blocks are checkpoints."""
        own, base = self.programs.start.recomputation, self.programs.base
        if not base.training:
            return [(own, False)]
        piped = split.ipus > 1 and self.programs.execution(split, replicas, rows) is not Execution.SHARDED
        plain = Recomputation.PIPELINE if piped else Recomputation.STANDARD
        if own is Recomputation.PIPELINE and not piped:
            own = Recomputation.NONE
        ways = [(Recomputation.NONE, False), (own, False), (plain, False)]
        if repeated_blocks(base.step):
            ways.append((Recomputation.PIPELINE if piped else Recomputation.ALL, True))
        return list(dict.fromkeys(ways))

    def _groups(self, split: Split, replicas: int, micro_batch: int, half: bool) -> Iterator[Setting]:
        """Yield settings without cuts and shares, the fastest first, with and without optimiser state on the chip."""
        start, keep, base = self.programs.start, self.limits.keep, self.programs.base
        may_halve_state = base.training and not {"optimiser", "precision"} & keep
        streams = base.training and base.system.streaming_bytes_per_second > 0 and base.optimiser is not None
        off = start.optimiser_off_chip or streams
        shared = start.optimiser_sharded or (streams and replicas * base.processes > 1)
        places = dict.fromkeys(((start.optimiser_off_chip, start.optimiser_sharded), (off, False), (off, shared)))
        for (off_chip, sharded), way in product(places, self.recomputations(split, replicas, micro_batch)):
            yield Setting(
                micro_batch=micro_batch,
                split=split,
                replicas=replicas,
                recomputation=way[0],
                checkpoints=way[1],
                half_precision=half,
                half_partials=start.half_partials or (half and "precision" not in keep),
                half_optimiser_state=start.half_optimiser_state or may_halve_state,
                optimiser_off_chip=off_chip,
                optimiser_sharded=sharded,
            )

    def _stages_of(self, group: Setting) -> Stages | None:
        """Return the stages that a group could have, as wrong as those were that are like it; `None`: its own stay."""
        if "split" in self.limits.keep and group.split.ipus > 1:
            return None
        if group not in self._stages:
            try:
                self._stages[group] = self.programs.stages(group)
            except Error:
                self._stages[group] = None
        stages = self._stages[group]
        if stages is not None and not stages.corrected.any():
            like = next((self._corrected[kind] for kind in _kinds_of(group) if kind in self._corrected), None)
            if like is not None:
                stages.wrong = like.wrong.copy()
        return stages

    # --- the plans of one group

    def settle(self, group: Setting, wanted: float = 0.0, *, tries: int = 0) -> Candidate | None:
        """Model plans of a group as long as they promise more than `wanted`, and return the fastest with room.

        With `tries`, there are so many, and the first that has room and is as fast as wanted will do.
        """
        stages = self._stages_of(group)
        if stages is None:
            return self._settle_as_split(group, wanted)
        found = self._fastest_known(group, wanted)
        for number in range((tries or TRIES) if stages.is_possible and not (tries and found) else 0):
            plan = stages.fastest(self._most_bytes)
            if plan is None:
                plan = stages.leanest()
                if plan.bytes > self._most_bytes * (HOPELESS if number == 0 else 1 + FIRST_UNSURE):
                    break
            doubt = UNSURE if stages.corrected.any() else FIRST_UNSURE
            if self.promise(group, stages, plan) * (1 + doubt) <= wanted or not self._is_new(group, stages, plan):
                break
            found = self._fastest_known(group, wanted)
            if found is not None:
                wanted = found.samples_per_second
                if tries:
                    break
        return found

    def _fastest_known(self, group: Setting, wanted: float) -> Candidate | None:
        known = (self.tried[setting] for setting, (its, _) in self._plans.items() if its == group)
        fitting = (one for one in known if self.has_room(one) and one.samples_per_second >= wanted)
        return max(fitting, key=lambda one: one.samples_per_second, default=None)

    def _settle_as_split(self, group: Setting, wanted: float) -> Candidate | None:
        for share in SHARES:
            setting = replace(group, available_memory_proportion=(share,) * group.split.ipus)
            if self.speed(setting) > wanted and self.has_room(self.candidate(setting)):
                return self.candidate(setting)
        return None

    def _is_new(self, group: Setting, stages: Stages, plan: Plan) -> bool:
        """Model a plan and correct the estimates of its group, unless it is known or refused."""
        own, starts = self.programs.start.split, stages.names(plan)
        split = own if group.split.ipus == own.ipus == 1 else group.split._replace(starts=starts)
        shares = tuple(stages.shares[part.share] for part in plan.parts)
        setting = replace(group, split=split, available_memory_proportion=shares if any(shares) else ())
        is_known = self._plans.get(setting, (None,))[0] == group
        candidate = self.candidate(setting)
        if is_known or candidate.refused:
            return False
        self._plans[setting] = group, plan
        cycles, held = zip(*candidate.loads)
        stages.correct(plan, cycles, held)
        self._corrected |= dict.fromkeys(_kinds_of(group), stages)
        busiest = replace(plan, cycles=max(cycles))
        self._promises_kept[self._rate_of(group)] = candidate.samples_per_second / self._estimate(stages, busiest)
        return True

    def promise(self, group: Setting, stages: Stages, plan: Plan) -> float:
        """Return the samples a second that a plan would reach if its group kept promises as those like it did."""
        return self._estimate(stages, plan) * self._promises_kept.get(self._rate_of(group), 1.0)

    def _estimate(self, stages: Stages, plan: Plan) -> float:
        program, batching = stages.program, stages.program.batching
        count = batching.accumulation if program.training else batching.steps
        updates = batching.device_iterations if program.training else 1
        filling = 0 if program.execution is Execution.SHARDED else (stages.count - 1) * (1 + program.training)
        seconds = program.system.chip.seconds(plan.cycles * (count + filling) * updates)
        return program.samples_per_call / call_time(program, self.host, seconds).total

    @staticmethod
    def _rate_of(group: Setting) -> tuple[object, ...]:
        return group.split, group.replicas, group.optimiser_off_chip, group.optimiser_sharded

    @property
    def _most_bytes(self) -> float:
        return self.limits.most_of_a_tile * self.programs.base.system.chip.tile_bytes

    # --- whether anything fits, and what is cheapest

    def _leanest(self, count: int) -> Candidate | None:
        """Return a plan with room of the leanest group on so many IPUs; in other types only if its own need more."""
        replicas = self.programs.start.replicas if "replicas" in self.limits.keep else 1
        for half in self._halves():
            rows = self._micro_batches(replicas)
            size = next((size for size in rows if isinstance(self.programs.captured(size, half), Program)), None)
            if size is None:  # say why
                self.candidate(next(self._groups(Split(count), replicas, rows[0], half)))
                continue
            group = min(self._groups(Split(count), replicas, size, half), key=self._least_bytes)
            if (found := self.settle(group, tries=3)) is not None:
                return found
            if (stages := self._stages_of(group)) is not None and stages.is_possible:
                self._is_new(group, stages, stages.leanest())
        return None

    def _least_bytes(self, group: Setting) -> tuple[float, int]:
        stages = self._stages_of(group)
        is_lean = group.optimiser_off_chip + group.optimiser_sharded + group.checkpoints
        return stages.leanest().bytes if stages is not None and stages.is_possible else 0.0, -is_lean

    def undone(self, now: Candidate, wanted: float = 0.0) -> Candidate:
        """Return a candidate without changes, the riskiest first, that it needs neither for room nor for this speed."""
        for name in RISKIEST_FIRST:
            for setting in self._ways_back(now.setting, name):
                found = self.candidate(setting) if name in _EXACTLY else self.settle(group_of(setting), wanted, tries=2)
                if found and self.has_room(found) and found.samples_per_second >= wanted:
                    now = found
                    break
        return now

    def _ways_back(self, now: Setting, name: str) -> Iterator[Setting]:
        """Yield the settings to try that set one option back, that with the program's own value first."""
        start = self.programs.start
        if name == "micro_batch":
            between = [rows for rows in self._micro_batches(now.replicas) if now.micro_batch < rows < start.micro_batch]
            yield from (replace(now, micro_batch=rows) for rows in (start.micro_batch, *reversed(between)))
        elif name in ("checkpoints", "recomputation"):
            ways = self.recomputations(now.split, now.replicas, now.micro_batch)
            for way, marked in ways[: ways.index((now.recomputation, now.checkpoints))]:
                if marked == (now.checkpoints and name == "recomputation"):
                    yield replace(now, recomputation=way, checkpoints=marked)
        elif name == "split" and now.split.ipus == start.split.ipus:
            yield from (
                replace(now, split=start.split, available_memory_proportion=share)
                for share in ((), now.available_memory_proportion)
            )
        elif name != "split" and getattr(now, name) != getattr(start, name):
            yield replace(now, **{name: getattr(start, name)})

    # --- what is fastest

    def _fastest(self, counts: Iterable[int], most: int) -> None:
        """Model the most promising groups; other micro-batches, slow to capture, as long as they are an improvement."""
        own = self.programs.start
        shapes: list[tuple[Split, int]] = []
        for count in counts:
            fills = 1 << (max(1, most // count).bit_length() - 1)
            numbers = (own.replicas,) if "replicas" in self.limits.keep else (fills, own.replicas, 1)
            for replicas in dict.fromkeys(number for number in numbers if count * number <= most):
                may_return = count > 1 and "split" not in self.limits.keep
                shapes += [(Split(count, None, returns), replicas) for returns in (False, True)[: 1 + may_return]]
        sizes = sorted({size for _, replicas in shapes for size in self._micro_batches(replicas)})
        for some in (
            [size for size in sizes if size >= own.micro_batch],
            [s for s in sizes if s < own.micro_batch][::-1],
        ):
            failures = 0
            for size in some:
                before, tried = self.best_speed(), len(self.tried)
                self._fastest_of(size, shapes)
                is_hopeless = len(self.tried) == tried
                failures = 0 if self.best_speed() > before else failures + 1 + is_hopeless
                if before and failures >= PATIENCE:
                    break
        self._look_again()

    def longer(self, now: Candidate) -> Candidate:
        """Return a candidate with as many calls in one as make it faster."""
        for calls in CALLS_IN_ONE if "calls" not in self.limits.keep else ():
            more = replace(now.setting, calls=calls)
            if self.speed(more) < now.samples_per_second * (1 + NEGLIGIBLE_GAIN):
                break
            now = self.candidate(more)
        return now

    def _fastest_of(self, size: int, shapes: Iterable[tuple[Split, int]]) -> None:
        half = self._halves()[-1]
        groups: list[Setting] = []
        for split, replicas in shapes:
            if size in self._micro_batches(replicas) and isinstance(self.programs.captured(size, half), Program):
                groups += self._groups(split, replicas, size, half)
        waiting = [(-self._promise_of(group), number, group) for number, group in enumerate(groups)]
        heapify(waiting)
        while waiting and len(self.tried) < self.budget:
            _, number, group = heappop(waiting)
            promised, wanted = self._promise_of(group), self._wanted(group)
            if waiting and promised < -waiting[0][0]:  # what was modelled meanwhile made it less promising
                heappush(waiting, (-promised, number, group))
            elif promised * (1 + FIRST_UNSURE) <= wanted:
                return
            else:
                self.settle(group, wanted)

    def _promise_of(self, group: Setting) -> float:
        """Return what a group promises, 0 if it needs far too much memory, and less the more it may need."""
        stages = self._stages_of(group)
        if stages is None:
            return self.speed(group)
        if not stages.is_possible:
            return 0.0
        if (plan := stages.fastest(self._most_bytes)) is not None:
            return self.promise(group, stages, plan)
        plan = stages.leanest()
        over = plan.bytes / self._most_bytes
        return 0.0 if over > HOPELESS else self.promise(group, stages, plan) / over

    def _wanted(self, group: Setting) -> float:
        """Return the speed that a group has to exceed; on fewer IPUs than the best, next to the same is enough."""
        fitting, best = self.fitting(), self.best_speed()
        as_good = best * (1 - NEGLIGIBLE_GAIN)
        fewest = min((one.setting.ipus for one in fitting if one.samples_per_second >= as_good), default=0)
        return as_good if group.ipus < fewest else best

    def best_speed(self) -> float:
        return max((candidate.samples_per_second for candidate in self.fitting()), default=0.0)

    def _look_again(self) -> None:
        """Model groups of the fastest plans that nearly fit once more, with their room and with no room to spare."""
        limits = self.limits
        known = sorted(self._plans, key=lambda setting: -self.tried[setting].samples_per_second)
        groups = [self._plans[setting][0] for setting in known if self.tried[setting].share < HOPELESS]
        for group, margin in product(list(dict.fromkeys(groups))[:NEAR], dict.fromkeys((limits.margin, 0.0))):
            self.limits = replace(limits, margin=margin)
            self.settle(group, self.best_speed())
        self.limits = limits


def group_of(setting: Setting) -> Setting:
    return replace(setting, split=setting.split._replace(starts=None), available_memory_proportion=(), calls=1)


def _kinds_of(group: Setting) -> Iterator[tuple[object, ...]]:
    """Yield what groups have in common whose estimates are about as wrong, those that are most alike first."""
    place = group.split, group.half_precision, group.optimiser_off_chip, group.optimiser_sharded
    yield *place, group.recomputation, group.checkpoints
    yield place
