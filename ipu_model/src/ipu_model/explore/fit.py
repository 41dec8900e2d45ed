"""`make_it_fit`: a search over combinations of settings for the fastest and the cheapest program that fits."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ipu_model.errors import Error
from ipu_model.explore.code import code_of
from ipu_model.explore.fit_result import Candidate, Fit, FitResult, Limits
from ipu_model.explore.options import checked_count
from ipu_model.explore.profile import check_host
from ipu_model.explore.settings import Programs, Setting
from ipu_model.explore.source import Source, source_of
from ipu_model.explore.split import Balance
from ipu_model.predict import memory_of_program, profile_program, samples_per_second
from ipu_model.predict.hardware import System, system_with_room
from ipu_model.predict.host import HostWork
from ipu_model.predict.program import Execution, Recomputation

MOST_IPUS = 64
"""The most IPUs of one process."""

KEEP: Mapping[str, str] = {
    "precision": "the types of weights, activations and partial sums",
    "optimiser": "the types of gradient accumulators and optimiser state",
    "micro-batch": "the rows of a micro-batch",
    "replicas": "the number of replicas",
    "split": "the blocks and the number of IPUs of a replica",
    "machine": "the machine",
}
"""What a search can be asked to leave as it is. The global batch always stays."""

_PROPORTIONS = (None, 0.2, 0.1)


def make_it_fit(
    thing: Any,
    inputs: Any = None,
    options: Any = None,
    *,
    optimizer: Any = None,
    training: bool | None = None,
    micro_batch: bool = False,
    host: HostWork | None = None,
    machine: str | System | None = None,
    ipus: int | None = None,
    keep: str | Iterable[str] = (),
    progress: bool | None = None,
) -> FitResult:
    """Search combinations of settings for the fastest program that fits, and for the cheapest.

    `thing` is a compiled executor (also one whose program did not fit), a `Profile`, a `Program`, or a plain module
    with the arguments of `ipu_model.profile_module`. All programs have the same global batch. `ipus` is the most IPUs
    to use (default: those of the machine, or as many as the first program that fits needs). `keep` names what must stay
    as it is (see `KEEP`). `progress` shows a bar (default: in a terminal and in a notebook).

    Raises:
        Error: an unknown machine or name in `keep`, fewer than 1 IPU, or a thing that is no program.
    """
    check_host(host)
    kept = _kept(keep)
    most = None if ipus is None else checked_count("ipus", ipus)
    source = source_of(thing, inputs, options, optimizer=optimizer, training=training, micro_batch=micro_batch)
    if machine is not None:
        source = _on_machine(source, machine)
    limits = Limits(most, kept, is_machine_given=machine is not None)
    return search(source, HostWork() if host is None else host, limits, progress=progress)


def _kept(keep: str | Iterable[str]) -> frozenset[str]:
    names = [keep] if isinstance(keep, str) else list(keep)
    for name in names:
        if name not in KEEP:
            near = difflib.get_close_matches(str(name), KEEP, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise Error(f"keep cannot name {name!r}.{hint} It takes {', '.join(KEEP)}.")
    return frozenset(names)


def _on_machine(source: Source, machine: str | System) -> Source:
    program = source.program
    system = system_with_room(machine, 1, "the argument machine")
    device = replace(program.settings.device, chip=system.chip)
    return replace(source, program=replace(program, system=system, settings=replace(program.settings, device=device)))


def search(source: Source, host: HostWork, limits: Limits, *, progress: bool | None = None) -> FitResult:
    """Return what fits within the limits, or the nearest if nothing does."""
    with _bar(progress) as tick:
        found = _Search(Programs(source), host, limits, tick)
        found.run()
        return found.result()


@contextmanager
def _bar(wanted: bool | None) -> Iterator[Any]:
    """Show how many programs have been modelled: in a terminal or a notebook, unless told otherwise."""
    from tqdm.auto import tqdm

    is_shown = sys.stderr.isatty() or "ipykernel" in sys.modules if wanted is None else wanted
    with tqdm(desc="programs modelled", unit="", disable=not is_shown, leave=False) as bar:
        yield bar.update


class _Search:
    """One search: what was modelled so far, and the order in which it goes on.

    For each number of IPUs it first models the leanest setting: if that does not fit, nothing else on as many IPUs
    does. From the leanest that fits it goes back, the riskiest change first, as long as the program still fits: what is
    left is the cheapest. For the fastest, it takes groups of settings (a micro-batch, a way to recompute) in the order
    of their best speed, and stops at the first group that cannot beat what was found.
    """

    def __init__(self, programs: Programs, host: HostWork, limits: Limits, tick: Any) -> None:
        self.programs, self.host, self.limits, self.tick = programs, host, limits, tick
        self.tried: dict[Setting, Candidate] = {}
        self._speeds: dict[Setting, float] = {}
        self.start = self.candidate(programs.start)

    def run(self) -> None:
        """Search until the fastest and the cheapest are known, with more IPUs as long as nothing fits."""
        for most in self._limits_to_try():
            lean = {count: self._leanest(count) for count in self._counts(most)}
            fitting = {count: each for count, each in lean.items() if each is not None and each.fits}
            if fitting:
                self._cheapest(fitting)
                self._fastest(fitting, most)
                return

    def result(self) -> FitResult:
        """Return what was found."""
        tried = tuple(self.tried.values())
        fitting = [each for each in tried if each.fits]
        nearest = min((each for each in tried if not each.refused), key=lambda each: each.share, default=None)
        fastest = max(fitting, key=lambda each: each.samples_per_second, default=None)
        cheapest = min(fitting, key=self._price, default=None)
        return FitResult(
            name=self.programs.base.name,
            start=self.start,
            fastest=self._fit(fastest),
            cheapest=self._fit(cheapest),
            nearest=None if fitting else self._fit(nearest),
            tried=tried,
            not_tried=self._not_tried(),
            limits=self.limits,
        )

    def _price(self, candidate: Candidate) -> tuple[float, ...]:
        """Return what the cheapest has least of: IPUs, then risk and number of changes, then time."""
        changes = self.programs.changes(candidate.setting)
        risk = sum(change.risk for change in changes)
        return candidate.ipus, risk, len(changes), -candidate.samples_per_second

    def _fit(self, candidate: Candidate | None) -> Fit | None:
        """Return a candidate with its code and profile, from the module captured with its changes if there is one."""
        if candidate is None:
            return None
        programs, setting = self.programs, candidate.setting
        program = programs.of(setting)
        changed = programs.changed_options(setting)
        micro_batch = setting.micro_batch if setting.micro_batch != programs.start.micro_batch else None
        try:
            confirmed = programs.confirmed(setting)
        except (Error, AssertionError):
            confirmed = None
        return Fit(
            candidate=candidate,
            changes=programs.changes(setting),
            code=code_of(programs.base, program, changed, micro_batch),
            profile=profile_program(confirmed or program, self.host),
            is_confirmed=confirmed is not None,
        )

    def _not_tried(self) -> tuple[str, ...]:
        if self.programs.source.again is None:
            return ("Other micro-batches were not tried: they need the module, to capture it again.",)
        return ()

    # --- modelling

    def candidate(self, setting: Setting) -> Candidate:
        """Model a setting, or say why it is refused."""
        known = self.tried.get(setting)
        if known is not None:
            return known
        self.tick(1)
        try:
            program = self.programs.of(setting)
            memory = memory_of_program(program)
            speed = self.speed(setting)
        except (Error, AssertionError) as problem:
            found = Candidate(setting, refused=str(getattr(problem, "message", problem)))
        else:
            share = memory.max_tile_bytes / memory.tile_bytes
            found = Candidate(setting, memory.verdict, share, speed)
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
        processes = self.programs.base.processes
        if self.limits.ipus is not None:
            yield max(1, self.limits.ipus // processes)
            return
        most = max(self.programs.base.system.ipus // processes, self.programs.start.all_ipus)
        yield most
        while not self._is_machine_fixed() and (most := most * 2) <= MOST_IPUS:
            yield most

    def _is_machine_fixed(self) -> bool:
        return self.limits.is_machine_given or "machine" in self.limits.keep

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
        found |= {start.micro_batch * 2, start.micro_batch * 4}
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
            for balance in reversed(self._balances(count)):
                setting = self._lean(
                    Setting(
                        count,
                        replicas,
                        micro_batch,
                        balance,
                        half,
                        recomputation=recomputation,
                        checkpoints=checkpoints,
                    )
                )
                found = self.candidate(setting)
                yield found
                if found.fits:
                    return

    def _lean(self, setting: Setting) -> Setting:
        """Return a setting with everything that saves memory and depends on nothing else."""
        start, keep, trains = self.programs.start, self.limits.keep, self.programs.base.training
        base = self.programs.base
        streams = trains and base.system.streaming_bytes_per_second > 0 and base.optimiser is not None
        return replace(
            setting,
            half_partials=start.half_partials or (setting.half and "precision" not in keep),
            half_state=start.half_state or (trains and "optimiser" not in keep),
            off_chip=start.off_chip or streams,
            sharded=start.sharded or (streams and self._can_shard(setting.replicas)),
            proportion=_PROPORTIONS[-1],
        )

    def _cheapest(self, fitting: Mapping[int, Candidate]) -> None:
        """Model what is cheapest on the fewest IPUs: from the leanest back to the program, while it still fits."""
        now = fitting[min(fitting)].setting
        for name, values in self._ways_back(now):
            for value in values:
                before = replace(now, **{name: value})
                if before == now:
                    break
                if self.candidate(before).fits:
                    now = before
                    break

    def _ways_back(self, now: Setting) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Yield what to set back, the riskiest first, each with the values to try, the program's own first."""
        start = self.programs.start
        yield "half", (start.half,)
        yield "half_state", (start.half_state,)
        yield "half_partials", (start.half_partials,)
        larger = [each for each in self._micro_batches(now.replicas) if now.micro_batch < each <= start.micro_batch]
        yield "micro_batch", tuple(reversed(larger))
        yield "balance", tuple(self._balances(now.ipus))
        yield "sharded", (start.sharded,)
        yield "off_chip", (start.off_chip,)
        yield "checkpoints", (False,)
        known = self._recomputations(now.ipus, now.replicas, now.micro_batch)
        ways = [mode for mode, checkpoints in known if checkpoints == now.checkpoints]
        yield "recomputation", tuple(ways)
        yield "proportion", _PROPORTIONS

    # --- the fastest

    def _fastest(self, fitting: Mapping[int, Candidate], most: int) -> None:
        """Model groups of settings by their best speed, until no group can be faster than what fits."""
        groups = [group for count in fitting for group in self._groups(count, most, fitting[count].setting.half)]
        groups.sort(key=self.speed, reverse=True)
        best = max((each.samples_per_second for each in self.tried.values() if each.fits), default=0.0)
        dead: list[Setting] = []
        for group in groups:
            if self.speed(group) <= best:
                break
            if any(_asks_for_more(group, other) for other in dead):
                continue
            found = self._fastest_of(group, best)
            if found is None:
                dead.append(group)
            else:
                best = max(best, found)

    def _groups(self, count: int, most: int, lean_half: bool) -> Iterator[Setting]:
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
                        half_state=self.programs.start.half_state
                        or (self.programs.base.training and "optimiser" not in keep),
                        off_chip=False,
                        sharded=False,
                        recomputation=recomputation,
                        checkpoints=checkpoints,
                    )

    def _fastest_of(self, group: Setting, best: float) -> float | None:
        """Return the speed of the fastest setting of a group that fits and beats `best`; `None` if none can fit."""
        lean = self._lean(group)
        balances = self._balances(group.ipus)
        if not any(self.candidate(replace(lean, balance=balance)).fits for balance in reversed(balances)):
            return None
        members = [
            each for place in self._places(group) if self._can_fit(group, place) for each in self._at(group, place)
        ]
        for setting in sorted(members, key=self.speed, reverse=True):
            if self.speed(setting) <= best:
                break
            if self.candidate(setting).fits:
                return self.speed(setting)
        return best

    def _places(self, group: Setting) -> tuple[tuple[bool, bool], ...]:
        """Return where optimiser state can be: off the chip or not, shared out over replicas or not."""
        lean = self._lean(group)
        return tuple(dict.fromkeys(((False, False), (lean.off_chip, False), (lean.off_chip, lean.sharded))))

    def _can_fit(self, group: Setting, place: tuple[bool, bool]) -> bool:
        """Whether the leanest setting with optimiser state in that place fits."""
        off_chip, sharded = place
        lean = replace(self._lean(group), off_chip=off_chip, sharded=sharded)
        return any(self.candidate(replace(lean, balance=each)).fits for each in reversed(self._balances(group.ipus)))

    def _at(self, group: Setting, place: tuple[bool, bool]) -> Iterator[Setting]:
        off_chip, sharded = place
        for balance in self._balances(group.ipus):
            for proportion in _PROPORTIONS:
                yield replace(group, balance=balance, off_chip=off_chip, sharded=sharded, proportion=proportion)


def _asks_for_more(setting: Setting, other: Setting) -> bool:
    """Whether a setting needs at least as much memory as another one for certain: only its micro-batch is larger."""
    return setting.micro_batch >= other.micro_batch and replace(setting, micro_batch=other.micro_batch) == other
