"""Changes of a program that are worth trying, each as the program it leads to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from ipu_model.costed import lowered
from ipu_model.host_work import HostWork, Loading
from ipu_model.lower.settings import CostSettings
from ipu_model.program import Execution, Locations, Program, Recomputation
from ipu_model.splits import balanced, stage_starts
from ipu_model.stages import stages_of
from ipu_model.transform import in_half_precision, with_byte_inputs


@dataclass(frozen=True)
class Change:
    """One change: what it is, how it is written with PopTorch, what it leads to, and what to know about it."""

    change: str
    how: str
    program: Program
    host: HostWork
    explanation: str


def changes(program: Program, host: HostWork) -> Iterator[Change]:
    """Yield the changes that apply to a program, in the order in which the course introduces them."""
    for each in (
        _half_precision, _half_partials, _accumulation, _device_iterations, _eight_bit, _loader, _split,
        _recomputation, _optimiser_location, _proportion, _replicas,
    ):  # fmt: skip
        yield from each(program, host)


def _half_precision(program: Program, host: HostWork) -> Iterator[Change]:
    if any(v.spec.dtype is torch.float32 for v in program.graph.variables if v.trainable or not program.training):
        yield Change(
            "half precision: float32 -> float16",
            "model.half(), inputs in float16; an optimiser with accum_type=torch.float16 and a loss scaling",
            replace(program, graph=in_half_precision(program.graph)),
            host,
            "Matrix units multiply float16 at twice the rate and every tensor takes half the memory; small gradients "
            "need a loss scaling. Optimiser state keeps its types here.",
        )


def _half_partials(program: Program, host: HostWork) -> Iterator[Change]:
    settings = program.settings
    if not settings.half_partials and _has_half_weights(program):
        yield Change(
            "half partials: float32 -> float16",
            "opts.Precision.setPartialsType(torch.half)",
            replace(program, settings=replace(settings, half_partials=True, half_partials_of_convolutions=None)),
            host,
            "Sums inside matrix products are kept in float16: twice the rate, less exchange, more rounding.",
        )


def _has_half_weights(program: Program) -> bool:
    return any(v.spec.dtype is torch.float16 for v in program.graph.variables)


def _accumulation(program: Program, host: HostWork) -> Iterator[Change]:
    if not program.training:
        return
    now = program.batching.accumulation
    for factor in (2, 4):
        yield Change(
            f"gradient accumulation: {now} -> {now * factor}",
            f"opts.Training.gradientAccumulation({now * factor})",
            replace(program, batching=replace(program.batching, accumulation=now * factor)),
            host,
            "More micro-batches per weight update: filling, draining and updating weigh less. The global batch grows "
            "with it, so the learning rate may have to change.",
        )


def _device_iterations(program: Program, host: HostWork) -> Iterator[Change]:
    now = program.batching.device_iterations
    for factor in (4, 16):
        yield Change(
            f"device iterations: {now} -> {now * factor}",
            f"opts.deviceIterations({now * factor})",
            replace(program, batching=replace(program.batching, device_iterations=now * factor)),
            host,
            "Fewer calls for the same work: what the host does once per call is shared by more samples.",
        )


def _eight_bit(program: Program, host: HostWork) -> Iterator[Change]:
    if program.synthetic_data or not any(spec.dtype.is_floating_point for spec in program.graph.inputs):
        return
    yield Change(
        "8-bit inputs",
        "send uint8 images, cast and normalise them at the start of forward",
        replace(program, graph=with_byte_inputs(program.graph)),
        host,
        "A half or a quarter of the bytes on the host link. What the host saves by not converting is not counted "
        "here: measure your loader both ways.",
    )


def _loader(program: Program, host: HostWork) -> Iterator[Change]:
    if host.seconds_per_sample <= 0:
        return
    if host.loading is Loading.SYNC:
        yield Change(
            "asynchronous data loading",
            "poptorch.DataLoader(..., mode=poptorch.DataLoaderMode.Async)",
            program,
            replace(host, loading=Loading.ASYNC),
            "The next batch is loaded while the device works: the slower of the two decides.",
        )
    more = 4 if host.workers < 2 else host.workers * 2
    yield Change(
        f"loader workers: {host.workers} -> {more}",
        f"poptorch.DataLoader(..., mode=poptorch.DataLoaderMode.Async, num_workers={more})",
        program,
        replace(host, workers=more, loading=Loading.ASYNC),
        f"Loading is shared by {more} processes; the host needs as many free cores.",
    )


def _split(program: Program, host: HostWork) -> Iterator[Change]:
    """Yield a more even split of a pipeline, and one over twice the IPUs."""
    known = lowered(program.graph, program.settings)
    now = len(stages_of(program.graph))
    for stages in dict.fromkeys((now, 2 * now)):
        if stages == 1 or program.execution is Execution.SHARDED:
            continue
        if program.training and program.batching.accumulation < 2 * stages - 1:
            continue
        if not program.training and program.batching.device_iterations < stages:
            continue
        found = balanced(_pipelined(program), known, stages)
        if found is None or found[1] == tuple(stage_starts(program.graph)):
            continue
        changed, names = found
        where = ", ".join(repr(name) for name in names)
        yield Change(
            f"split over {stages} IPUs at {where}",
            f"poptorch.BeginBlock before {where} (ipu_id 1 to {stages - 1})",
            changed,
            host,
            "A pipeline runs at the speed of its slowest stage; these are the modules where modelled stage times come "
            "out most even.",
        )


def _pipelined(program: Program) -> Program:
    """Return the program as PopTorch runs it once it has several stages: recomputing, when it trains."""
    if program.training and program.recomputation is Recomputation.NONE and len(stages_of(program.graph)) == 1:
        return replace(program, recomputation=Recomputation.PIPELINE)
    return program


def _recomputation(program: Program, host: HostWork) -> Iterator[Change]:
    if not program.training:
        return
    if program.recomputation is not Recomputation.NONE:
        yield Change(
            f"recomputation: {program.recomputation.value} -> none",
            'opts._Popart.set("autoRecomputation", 0)',
            replace(program, recomputation=Recomputation.NONE),
            host,
            "Activations are kept instead of being computed again: faster, if they fit.",
        )
    else:
        yield Change(
            "recomputation: none -> standard",
            'opts._Popart.set("autoRecomputation", 1)',
            replace(program, recomputation=Recomputation.STANDARD),
            host,
            "Activations are computed again in the backward pass: memory for time.",
        )


def _optimiser_location(program: Program, host: HostWork) -> Iterator[Change]:
    if not program.training or program.system.streaming_bytes_per_second <= 0:
        return
    location = program.locations.optimiser
    where = ("on chip", "off chip") if location.on_chip else ("off chip", "on chip")
    moved: Locations = replace(program.locations, optimiser=replace(location, on_chip=not location.on_chip))
    yield Change(
        f"optimiser state: {where[0]} -> {where[1]}",
        "opts.TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage("
        f"{not location.on_chip}))",
        replace(program, locations=moved),
        host,
        "State in streaming memory leaves its place on the tiles to other data and is fetched for every weight update.",
    )


def _proportion(program: Program, host: HostWork) -> Iterator[Change]:
    settings = program.settings
    for proportion in (0.1, 0.2, 0.4, 0.9):
        wanted = dict.fromkeys(program.graph.ipus, proportion)
        if all(settings.proportion(ipu) == proportion for ipu in wanted):
            continue
        changed: CostSettings = replace(settings, available_memory_proportion=wanted)
        pairs = ", ".join(f'"IPU{ipu}": {proportion}' for ipu in wanted)
        yield Change(
            f"available memory proportion: {proportion} on every IPU",
            f"opts.setAvailableMemoryProportion({{{pairs}}})",
            replace(program, settings=changed),
            host,
            "The share of a tile that one convolution or matrix product may use for temporary data: less memory or "
            "fewer cycles.",
        )


def _replicas(program: Program, host: HostWork) -> Iterator[Change]:
    now = program.batching.replicas
    if program.processes > 1 or (program.reserved_ipus or 0) * 2 > program.system.ipus:
        return
    if program.ipus_per_replica * now * 2 > program.system.ipus:
        return
    yield Change(
        f"replicas: {now} -> {now * 2}",
        f"opts.replicationFactor({now * 2})",
        replace(program, batching=replace(program.batching, replicas=now * 2), reserved_ipus=None),
        host,
        "Idle IPUs of the machine work on other samples of a larger global batch; the host has to load for all.",
    )
