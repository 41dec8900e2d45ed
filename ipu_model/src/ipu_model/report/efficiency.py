"""Divide the cycles of a program by cause, from the matrix units at their peak down to waiting."""

from __future__ import annotations

from dataclasses import dataclass

from ipu_model.predict.profile import Profile


@dataclass(frozen=True)
class Spent:
    """Cycles of all IPUs in one call that go into one thing, and their share of all."""

    name: str
    cycles: float
    share: float
    explanation: str


@dataclass(frozen=True)
class Roofline:
    """FLOP/s of one replica beside the peak of its matrix units; `intensity` is FLOPs for each byte of the operands.

    `flops_per_second` counts the device's whole time, `while_contracting` the time of the contractions alone.
    """

    flops_per_second: float
    while_contracting: float
    peak: float
    intensity: float

    @property
    def share(self) -> float:
        """The share of the peak that the program reaches."""
        return self.flops_per_second / self.peak if self.peak else 0.0

    @property
    def share_while_contracting(self) -> float:
        """The share of the peak that its contractions reach while they run."""
        return self.while_contracting / self.peak if self.peak else 0.0


def roofline(profile: Profile) -> Roofline | None:
    """Return how far a program is below the peak of its matrix units; `None` if it has no contractions."""
    contractions = [op for op in profile.work if op.peak_flops_per_cycle and op.flops]
    flops = float(sum(op.flops * op.executions for op in contractions))
    cycles = sum(op.cycles_per_call for op in contractions)
    if not flops or not cycles:
        return None
    clock = profile.machine.clock_hz
    peak = max(op.peak_flops_per_cycle for op in contractions) * clock
    accessed = sum(op.accessed_bytes * op.executions for op in contractions)
    ipus = len(profile.cycles)
    return Roofline(
        flops_per_second=flops / profile.device_seconds_per_call,
        while_contracting=flops / cycles * clock * ipus,
        peak=peak * ipus,
        intensity=flops / accessed if accessed else 0.0,
    )


def cycles_spent(profile: Profile) -> tuple[Spent, ...]:
    """Return what all IPUs spend the cycles of a call on, without parts that take none; the shares add up to 1.

    The first part is what the contractions would take at the matrix units' peak; the next is what they take beyond.
    """
    every = profile.cycles
    total = sum(each.total for each in every)
    if not total:
        return ()
    contractions = [op for op in profile.work if op.peak_flops_per_cycle and op.flops]
    ideal = sum(op.flops * op.executions / op.peak_flops_per_cycle for op in contractions)
    computing = sum(op.on_tile_execute * op.executions for op in contractions)
    execute = sum(each.on_tile_execute for each in every)
    ideal, computing = min(ideal, execute), min(max(computing, ideal), execute)
    parts = (
        ("at the matrix units' peak", ideal, "What all matrix products and convolutions would take at the peak."),
        ("contractions below the peak", computing - ideal, "Shapes that do not fill the units, partial sums, casts."),
        ("other computation", execute - computing, "Element-wise ops, norms, softmax, reductions, copies, updates."),
        ("exchange between tiles", sum(e.do_exchange for e in every), "Moving operands to the tiles that need them."),
        ("synchronisation of tiles", sum(e.internal_sync for e in every), "Tiles wait for each other between steps."),
        (
            "copies between IPUs",
            sum(e.global_exchange for e in every),
            "Activations, gradients, sums over replicas.",
        ),
        (
            "host and streaming memory",
            sum(e.stream_copy_begin + e.stream_copy_mid + e.stream_copy_end for e in every),
            "Inputs, results, and state that is kept off the chip.",
        ),
        ("waiting for other IPUs", sum(e.external_sync for e in every), "Filling the pipeline, and uneven stages."),
    )
    return tuple(Spent(name, cycles, cycles / total, words) for name, cycles, words in parts if cycles > 0)
