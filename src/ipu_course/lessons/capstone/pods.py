"""How a plan scales over replicas: memory, sharded state, and the all-reduce in a Pod and between Pods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping

from ipu_course import engine, figures, show
from ipu_course.lessons.capstone.plan_results import stored_plans
from ipu_course.lessons.capstone.plans import MACHINE, PlanGraph, captured_graph
from ipu_course.not_modelled import NOT_MODELLED

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule, ScalingPoint
    from ipu_course.lessons.capstone.plan_results import PlanResult
    from ipu_course.lessons.capstone.transformer import TransformerSize

KIB = 1024
CLOSE = "too close to call"
REPLICAS = (1, 4, 16, 64)
WAYS: Mapping[str, Mapping[str, bool]] = {
    "state off the chip": {"optimiser_off_chip": True, "optimiser_sharded": False},
    "state off the chip, sharded": {"optimiser_off_chip": True, "optimiser_sharded": True},
    "state on the chip, sharded": {"optimiser_off_chip": False, "optimiser_sharded": True},
}


def best_with_room(size: TransformerSize) -> PlanResult:
    """Return the fastest plan of the space whose state is off the chip."""
    return next(each for each in stored_plans(size).fitting if not each.plan.state_on_chip)


@engine.needs_the_model
def plan_to_scale(size: TransformerSize) -> ModelledModule:
    """Capture the fastest plan with its state off the chip and room on every tile, to run it on more replicas."""
    plan = best_with_room(size).plan
    return captured_graph(size, PlanGraph(plan.layers, plan.head, plan.micro_batch))


def scaled(module: ModelledModule, size: TransformerSize, way: str) -> tuple[ScalingPoint, ...]:
    """Return the plan on 1 to 64 replicas of four Bow IPUs, with its state kept in one of ``WAYS``."""
    plan = best_with_room(size).plan
    settings: dict[str, Any] = {"available_memory_proportion": plan.proportion, **WAYS[way]}
    if plan.every_layer:
        settings["checkpoints"] = [f"layers.{number}" for number in range(size.layers)]
    return module.scaling(REPLICAS, machine=MACHINE, **settings)


def show_replicas(module: ModelledModule, size: TransformerSize) -> None:
    """Show what each replica contributes with the state in three places, and a table with memory and times."""
    if module is NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    points = {way: scaled(module, size, way) for way in WAYS}
    curves = {way: [_each_contributes(each) for each in found] for way, found in points.items()}
    close = {way: [_is_close(each) for each in found] for way, found in points.items()}
    told = "; ".join(
        f"{way}: "
        + ", ".join(f"{count}: {_told(rate, is_close)}" for count, rate, is_close in zip(REPLICAS, rates, close[way]))
        for way, rates in curves.items()
    )
    show.figure(
        figures.curves_figure(
            REPLICAS, curves, "replicas of four IPUs", "sequences/s per replica",
            "Rate of each replica (modelled)", log_x=True, from_zero=True,
            hollow=close, hollow_label="too close to call if it fits",
        ),
        "Sharding turns replicas into memory: the state of one replica shrinks, and so do the copies. (Where "
        "there is no point, the plan does not fit.)",
        f"Sequences per second of each replica against the number of replicas, modelled. {told}.",
    )  # fmt: skip
    alone = next(iter(points.values()))[0].samples_per_second
    show.table([replica_row(way, each, alone) for way, found in points.items() for each in found])


def _each_contributes(point: ScalingPoint) -> float | None:
    """Return the rate of each replica, or ``None`` where the program does not fit."""
    if point.profile is None or not engine.may_run(point.profile):
        return None
    return point.samples_per_second / point.replicas


def _is_close(point: ScalingPoint) -> bool:
    return point.profile is not None and engine.memory_verdict(point.profile) == CLOSE


def _told(rate: float | None, is_close: bool) -> str:
    return "does not fit" if rate is None else f"{rate:,.0f}{' (too close to call if it fits)' if is_close else ''}"


def replica_row(way: str, point: ScalingPoint, alone: float) -> dict[str, object]:
    """Return the memory and the times of an update of one number of replicas.

    The efficiency compares what each replica contributes with ``alone``, the rate of one that runs by itself.
    """
    profile = point.profile
    assert profile is not None  # the machine grows with the replicas
    rate = _each_contributes(point)
    milliseconds = {name: 1e3 * profile.device_seconds_per_call * share for name, share in profile.shares.items()}
    return {
        "optimiser state": way,
        "replicas": point.replicas,
        "machine": profile.machine.name,
        "fullest tile (modelled)": f"{profile.memory.max_tile_bytes / KIB:,.0f} KiB",
        "fits": engine.fits_in_a_word(profile),
        "all-reduce (modelled)": f"{milliseconds.get('collective', 0.0):.1f} ms",
        "copies of the state (modelled)": f"{milliseconds.get('offload', 0.0):.1f} ms",
        "efficiency (modelled)": "-" if rate is None else f"{rate / alone:.0%}",
    }


def reduced_bytes(gradient: float, replicas: int, pods: int) -> tuple[float, float]:
    """Return the bytes that each replica sends in a hierarchical all-reduce: over IPU-Links, and between Pods.

    ``replicas`` are those of one Pod. Inside, a reduce-scatter comes first and an all-gather last; between them, each
    replica reduces its own part with its partners in the other Pods.
    """
    inside = 2 * (replicas - 1) / replicas * gradient
    between = 2 * (pods - 1) / pods * gradient / replicas
    return inside, between
