"""The next changes worth trying, each with its modelled gain and cost; every candidate is modelled."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ipu_model.errors import Error
from ipu_model.explore.blocks import blocks_of, has_checkpoints, repeated_blocks
from ipu_model.explore.fit_result import MARGIN, Limits, OtherLoader
from ipu_model.explore.options import (
    OPTIONS,
    Change,
    Risk,
    has_half_state,
    is_in_half_precision,
    with_options,
)
from ipu_model.explore.placement import even_cuts
from ipu_model.explore.search_points import Programs
from ipu_model.explore.what_if import Source, host_work_of, source_of
from ipu_model.predict import profile_program
from ipu_model.predict.host import HostWork, Loading
from ipu_model.predict.profile import Profile, Verdict
from ipu_model.predict.program import Execution, Program, Recomputation
from ipu_model.report.quantities import counted
from ipu_model.step import FLOAT16

LEAST_GAIN = 1.02
"""Changes that raise throughput by less than this factor are left out, unless memory is what is missing."""
LEAST_SAVING = 0.05
"""Changes that empty the fullest tile by less than this share are left out if memory is what is missing."""
MOST_ITEMS = 8
_WIDTH = 97


@dataclass(frozen=True)
class Advice:
    """A modelled change, the line of code for it (`how`), its effect on throughput and the fullest tile, and why.

    `evidence` has figures before and after, `cost` what it costs ("" for nothing), `share` is that of the fullest tile.
    Of changes of one `kind`, advice has the most useful only.
    """

    change: str
    how: str
    samples_per_second_factor: float
    max_tile_bytes_change: float
    verdict: Verdict
    explanation: str
    risk: Risk = Risk.NONE
    evidence: str = ""
    cost: str = ""
    kind: str = ""
    share: float = 0.0

    @property
    def fits(self) -> bool:
        return self.verdict is Verdict.FITS

    @property
    def effect(self) -> str:
        """What the change is good for, in a few words: of speed only if the program fits then."""
        if self.fits:
            return f"x {self.samples_per_second_factor:.2f} samples/s, {self.verdict}"
        return f"{self.max_tile_bytes_change / 1024:+,.0f} KiB on the fullest tile: {self.verdict}"


@dataclass(frozen=True)
class AdviceList(Sequence[Advice]):
    """The changes worth trying, the most useful first; if no single one is enough, `search` finds several."""

    items: tuple[Advice, ...]
    is_enough: bool = True
    search: str = "ipu_model.make_it_fit"

    @property
    def note(self) -> str:
        if self.is_enough and self.items:
            return ""
        missing = "that was tried makes it better" if self.is_enough else "makes this program fit with room to spare"
        return f"No single change {missing}. {self.search} searches combinations of changes."

    def __getitem__(self, index: Any) -> Any:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    def __str__(self) -> str:
        texts = []
        for number, item in enumerate(self.items, 1):
            words = (item.evidence, item.explanation, item.cost and f"Cost: {item.cost}.")
            wrapped = [line for text in words for line in textwrap.wrap(text, _WIDTH)]
            code = (f"    {line}" for line in item.how.splitlines())
            texts.append("\n   ".join((f"{number}. {item.change}: {item.effect}", *wrapped, *code)))
        return "\n\n".join(filter(None, (*texts, self.note)))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


def advise(
    thing: Any,
    inputs: Any = None,
    options: Any = None,
    *,
    host: HostWork | None = None,
    profile: Profile | None = None,
    margin: float = MARGIN,
    **module: Any,
) -> AdviceList:
    """Return the changes that make a program fit or faster, the most useful first.

    `thing` is a compiled executor (also one whose program did not fit), a `Profile`, a `Program`, or a plain module
    with the `inputs`, `options` and further arguments of `ipu_model.profile_module`. `profile` is its profile, if you
    already have it. `host` is by default the work that the profile was modelled with.

    If the program fits with the share `margin` of the fullest tile free, so do all changes, and they are ranked by
    speed for each unit of risk: the logarithm of the gain, divided by 1 if the results stay the same, by 2 if work is
    only distributed differently, and by 4 if the numerics change. If it needs more, they are ranked by memory. Raises
    `Error` if `thing` is none of these, or has not been compiled.
    """
    host = host_work_of(thing if profile is None else profile, host)
    source = source_of(thing, inputs, options, **module)
    before = profile if profile is not None and profile.host == host else profile_program(source.program, host)
    room, items = Limits(margin=margin), list(_modelled(source, host, before))
    has_room = room.allow(before.memory.share)
    if has_room:
        items = [item for item in items if room.allow(item.share) and item.samples_per_second_factor >= LEAST_GAIN]
        items.sort(key=lambda item: -math.log(item.samples_per_second_factor) / 2**item.risk)
    else:
        most = -LEAST_SAVING * before.memory.max_tile_bytes
        items = [item for item in items if item.fits or item.max_tile_bytes_change < most]
        items.sort(key=lambda item: (not room.allow(item.share), item.max_tile_bytes_change))
    best_of_kind: dict[str, Advice] = {}
    for item in items:
        best_of_kind.setdefault(item.kind, item)
    best = tuple(best_of_kind.values())[:MOST_ITEMS]
    is_enough = has_room or any(room.allow(item.share) for item in best)
    return AdviceList(best, is_enough)


def _modelled(source: Source, host: HostWork, before: Profile) -> Iterator[Advice]:
    program = source.program
    for changed in _worth_trying(program):
        try:
            after = profile_program(with_options(program, **changed), host)
        except Error:
            continue
        options = [(OPTIONS[name], value) for name, value in changed.items()]
        changes = [Change(one.change(program, value), one.line(program, value), one.risk) for one, value in options]
        explanation = " ".join(option.explanation for option, _ in options)
        yield _advice(next(iter(changed)), changes, explanation, before, after)
    yield from _micro_batches(source, host, before)
    for other in other_loaders(host):
        changes = [Change(other.change, other.line, Risk.NONE)]
        yield _advice(other.change, changes, other.explanation, before, profile_program(program, other.host))


def _advice(kind: str, changes: Sequence[Change], explanation: str, before: Profile, after: Profile) -> Advice:
    risk = max(change.risk for change in changes)
    factor = after.samples_per_second / before.samples_per_second
    bytes_change = after.memory.max_tile_bytes - before.memory.max_tile_bytes
    shares = [profile.memory.share for profile in (before, after)]
    limits = " -> ".join(dict.fromkeys((before.limited_by, after.limited_by)))
    costs = []
    if factor < 1 / LEAST_GAIN:
        costs.append(f"{1 - factor:.0%} fewer samples a second")
    if (share := bytes_change / after.memory.tile_bytes) > 0.01:
        costs.append(f"{share:.0%} more of a tile's memory")
    if risk is not Risk.NONE:
        costs.append(str(risk))
    evidence = (
        f"{before.samples_per_second:,.4g} -> {after.samples_per_second:,.4g} samples/s, the fullest tile "
        f"{shares[0]:.0%} -> {shares[1]:.0%} of its memory, limited by {limits} (modelled)."
    )
    words, lines = ", ".join(change.text for change in changes), "\n".join(change.line for change in changes)
    gained = factor, bytes_change, after.verdict
    return Advice(words, lines, *gained, explanation, risk, evidence, "; ".join(costs), kind, shares[1])


def _worth_trying(program: Program) -> Iterator[dict[str, Any]]:
    """Yield options and values that may help a program, in the order in which the course introduces them."""
    batching, settings = program.batching, program.settings
    if not is_in_half_precision(program):
        yield {"half_precision": True}
    if not settings.half_partials and program.has_variables_of(FLOAT16):
        yield {"half_partials": True}
    if program.training:
        yield from ({"gradient_accumulation": batching.accumulation * factor} for factor in (2, 4))
    yield from ({"device_iterations": batching.device_iterations * factor} for factor in (4, 16))
    if not program.synthetic_data and any(tensor.dtype.is_floating for tensor in program.step.inputs):
        yield {"eight_bit_inputs": True}
    yield from ({"split": names} for names in _splits(program))
    if program.training:
        pipelined = program.execution is Execution.PIPELINED and len(program.step.stages) > 1
        other = "pipeline" if pipelined else "standard"
        yield {"recomputation": other if program.recomputation is Recomputation.NONE else "none"}
        blocks = repeated_blocks(program.step)
        if blocks and not has_checkpoints(program.step):
            yield {"recomputation": "all", "checkpoints": blocks}
        if not has_half_state(program):
            yield {"half_optimiser_state": True}
        if program.optimiser is not None and program.system.streaming_bytes_per_second > 0:
            yield {"optimiser_off_chip": program.locations.optimiser.on_chip}
            if program.replicas > 1:
                yield {"optimiser_sharded": not program.locations.optimiser.sharded}
    for proportion in (0.1, 0.2, 0.4, 0.9):
        if any(settings.proportion(ipu) != proportion for ipu in program.step.ipus):
            yield {"available_memory_proportion": proportion}
    if program.processes == 1 and (program.reserved_ipus or 0) * 2 <= program.system.ipus:
        yield {"replicas": batching.replicas * 2}


def _splits(program: Program) -> list[tuple[str, ...]]:
    if program.execution is Execution.SHARDED:
        return []
    now = len(program.step.stages)
    cuts = (names for count in (now, 2 * now) if count > 1 for names in even_cuts(program, count))
    return [names for names in dict.fromkeys(cuts) if names != tuple(blocks_of(program))]


def _micro_batches(source: Source, host: HostWork, before: Profile) -> Iterator[Advice]:
    """Yield the effect of half and of twice the micro-batch at the same global batch, if the module is there."""
    programs, rows = Programs(source), source.program.samples_per_micro_batch
    if source.again is None or not source.program.training:
        return
    explanation = (
        "Activations take memory in proportion to the micro-batch. The global batch stays the same, but norms over the "
        "batch see different samples."
    )
    for wanted in (rows * 2,) if rows % 2 else (rows // 2, rows * 2):
        setting = replace(programs.start, micro_batch=wanted)
        try:
            after = profile_program(programs.of(setting), host)
        except Error:
            continue
        yield _advice("micro_batch", programs.changes(setting)[::-1], explanation, before, after)


def other_loaders(host: HostWork) -> Iterator[OtherLoader]:
    """Yield loaders that may be faster, that without further processes first; none for data that cost nothing."""
    if host.seconds_per_sample <= 0:
        return
    if host.loading is Loading.SYNC:
        yield OtherLoader(
            replace(host, loading=Loading.ASYNC),
            "asynchronous data loading",
            "poptorch.DataLoader(..., mode=poptorch.DataLoaderMode.Async)",
            "The host loads the next batch while the device works, so only the slower of the two limits throughput.",
        )
    more, cores = 4 if host.workers < 2 else host.workers * 2, host.cores_per_host
    needed = "The host needs that many free cores."
    if 0 < cores < more:  # 0 stands for as many cores as there are processes
        needed = (
            f"The effect counts with {counted(cores, 'core')}; a host with a free core for each process loads faster."
        )
    yield OtherLoader(
        replace(host, workers=more, loading=Loading.ASYNC),
        f"loader workers: {host.workers} -> {more}",
        f"poptorch.DataLoader(..., mode=poptorch.DataLoaderMode.Async, num_workers={more})",
        f"{more} processes share the loading. {needed}",
    )
