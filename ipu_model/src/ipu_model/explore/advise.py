"""The next changes worth trying, each with its modelled gain and cost; every candidate is modelled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ipu_model.entry_points import program_of
from ipu_model.errors import Error
from ipu_model.explore.options import has_single_precision, has_variables_of, option_named, with_options
from ipu_model.explore.profile import check_host
from ipu_model.explore.split import even_starts, stage_starts
from ipu_model.predict import profile_program
from ipu_model.predict.host import HostWork, Loading
from ipu_model.predict.profile import Profile
from ipu_model.predict.program import Execution, Program, Recomputation
from ipu_model.step import FLOAT16

LEAST_GAIN = 1.02
"""Changes that raise throughput by less than this factor are left out, unless they make the program fit."""
MOST_ITEMS = 8


@dataclass(frozen=True)
class Advice:
    """A change that was modelled.

    `change` describes the change in a few words, and `how` is the line of code for it. The change multiplies the
    end-to-end throughput by `samples_per_second_factor` and adds `max_tile_bytes_change` bytes to the fullest tile;
    `fits` is the new verdict on memory. `explanation` gives the reason.
    """

    change: str
    how: str
    samples_per_second_factor: float
    max_tile_bytes_change: float
    fits: bool
    explanation: str


def advise(executor: Any, *, host: HostWork | None = None, profile: Profile | None = None) -> tuple[Advice, ...]:
    """Return the changes that make a program fit or faster, the most useful first.

    `executor` is a compiled executor or a `Program`; `profile` is its profile, if you already have one. If the program
    fits, changes that would no longer fit are left out; if it does not fit, changes that save memory come first.

    Raises:
        Error: not a compiled executor.
    """
    check_host(host)
    program, host = program_of(executor), host or HostWork()
    before = profile or profile_program(program, host)
    found = [item for item in _modelled(program, host, before) if _is_useful(item, before)]
    found.sort(key=lambda item: (not item.fits, -item.samples_per_second_factor))
    return tuple(_best_of_each_kind(found)[:MOST_ITEMS])


def _modelled(program: Program, host: HostWork, before: Profile) -> Iterator[Advice]:
    """Yield the modelled effect of each change worth trying, without changes that the model refuses."""
    for name, value in _worth_trying(program):
        option = option_named(name)
        try:
            after = profile_program(with_options(program, **{name: value}), host)
        except Error:
            continue
        yield _advice(
            option.change(program, value), option.line(program, value), option.explained(value), before, after
        )
    yield from _loaders(program, host, before)


def _advice(change: str, how: str, explanation: str, before: Profile, after: Profile) -> Advice:
    return Advice(
        change=change,
        how=how,
        samples_per_second_factor=after.samples_per_second / before.samples_per_second,
        max_tile_bytes_change=after.memory.max_tile_bytes - before.memory.max_tile_bytes,
        fits=after.fits,
        explanation=explanation,
    )


def _worth_trying(program: Program) -> Iterator[tuple[str, Any]]:
    """Yield options and values that may help a program, in the order in which the course introduces them."""
    batching, settings = program.batching, program.settings
    if has_single_precision(program):
        yield "half_precision", True
    if not settings.half_partials and has_variables_of(program, FLOAT16):
        yield "half_partials", True
    if program.training:
        yield from (("gradient_accumulation", batching.accumulation * factor) for factor in (2, 4))
    yield from (("device_iterations", batching.device_iterations * factor) for factor in (4, 16))
    if not program.synthetic_data and any(tensor.dtype.is_floating for tensor in program.step.inputs):
        yield "eight_bit_inputs", True
    yield from (("split", names) for names in _splits(program))
    if program.training:
        yield "recomputation", "standard" if program.recomputation is Recomputation.NONE else "none"
    if program.training and program.system.streaming_bytes_per_second > 0:
        yield "optimiser_off_chip", program.locations.optimiser.on_chip
    for proportion in (0.1, 0.2, 0.4, 0.9):
        if any(settings.proportion(ipu) != proportion for ipu in program.step.ipus):
            yield "available_memory_proportion", proportion
    if program.processes == 1 and (program.reserved_ipus or 0) * 2 <= program.system.ipus:
        yield "replicas", batching.replicas * 2


def _splits(program: Program) -> Iterator[tuple[str, ...]]:
    """Yield the most even split of a pipeline over the same IPUs, and over twice as many."""
    now = len(program.step.stages)
    for stages in (now, 2 * now):
        if stages > 1 and program.execution is not Execution.SHARDED:
            names = even_starts(program, stages)
            if names is not None and names != tuple(stage_starts(program)):
                yield names


def _loaders(program: Program, host: HostWork, before: Profile) -> Iterator[Advice]:
    """Yield the effect of other loaders, which belong to the host and are not options of the program."""
    if host.seconds_per_sample <= 0:
        return
    if host.loading is Loading.SYNC:
        yield _advice(
            "asynchronous data loading",
            "poptorch.DataLoader(..., mode=poptorch.DataLoaderMode.Async)",
            "The next batch is loaded while the device works: the slower of the two decides.",
            before,
            profile_program(program, replace(host, loading=Loading.ASYNC)),
        )
    more = 4 if host.workers < 2 else host.workers * 2
    yield _advice(
        f"loader workers: {host.workers} -> {more}",
        f"poptorch.DataLoader(..., mode=poptorch.DataLoaderMode.Async, num_workers={more})",
        f"Loading is shared by {more} processes; the host needs as many free cores.",
        before,
        profile_program(program, replace(host, workers=more, loading=Loading.ASYNC)),
    )


def _is_useful(item: Advice, before: Profile) -> bool:
    if before.fits:
        return item.fits and item.samples_per_second_factor >= LEAST_GAIN
    return item.fits or item.max_tile_bytes_change < -0.05 * before.memory.max_tile_bytes


def _best_of_each_kind(items: list[Advice]) -> list[Advice]:
    """Keep the first of the items that change the same thing ("device iterations: ..." by two factors, say)."""
    kept: dict[str, Advice] = {}
    for item in items:
        kept.setdefault(item.change.split(":")[0], item)
    return list(kept.values())
