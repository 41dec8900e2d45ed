"""How throughput grows with replicas: what each of them brings, and what feeds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping, Sequence

from ipu_course import engine, figures, show

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ipu_course.engine import Profile, ScalingPoint

__all__ = [
    "limiter",
    "per_replica_figure",
    "show_hosts",
    "show_scaling",
    "throughput_figure",
    "update_share",
]

KIB = 1024
EXCHANGE = "global exchange code"
REPLICAS = "replicas, one IPU each"
# What a weight update does once, however many micro-batches it has.
ONCE = ("collective", "update", "fill and flush", "offload", "run start")
LIMITERS = {"host loader": "host loader", "host call": "host, work of the call", "stream": "host link"}


def limiter(profile: Profile) -> str:
    """What has to become faster first, in this lesson's words."""
    return LIMITERS.get(profile.limited_by, "IPUs")


def update_share(profile: Profile) -> float:
    """The share of the device's time that a weight update takes once: all-reduce, update, start."""
    return sum(profile.shares[name] for name in ONCE)


def show_scaling(points: Sequence[ScalingPoint], published: tuple[int, float]) -> None:
    """Show images a second of each replica beside theory, and a table; ``published`` is (replicas, images a second)."""
    if not points:
        print(engine.NOT_HERE)
        return
    show.figure(per_replica_figure(points, published), _described(points, published))
    show.table([_scaling_row(point) for point in points], index="replicas")


def per_replica_figure(points: Sequence[ScalingPoint], published: tuple[int, float]) -> Figure:
    """Images a second and replica: a flat line is perfect scaling."""
    replicas, rate = published
    drawn = figures.curves_figure(
        [point.replicas for point in points],
        {
            "theory: as one replica alone": [p.theoretical_samples_per_second / p.replicas for p in points],
            "modelled": [_rate(p, p.replicas) for p in points],
        },
        REPLICAS,
        "images a second and replica",
        "What each replica brings (accumulation stays, modelled)",
        log_x=True,
        from_zero=True,
        marked={f"{replicas} IPUs": (replicas, rate / replicas)},
    )
    _headroom(drawn)
    return drawn


def _headroom(drawn: Figure) -> None:
    """Room above lines that run along the top."""
    axes = drawn.axes[0]
    axes.set_ylim(top=1.15 * axes.get_ylim()[1])


def _described(points: Sequence[ScalingPoint], published: tuple[int, float]) -> str:
    words = ", ".join(f"{p.replicas}: {p.samples_per_second / p.replicas:,.0f}" for p in points if p.profile)
    return (
        "Images a second and replica against replicas; theory is a flat line, the modelled line begins there and "
        f"falls below it. Modelled, {words}. Published at {published[0]}: {published[1] / published[0]:,.0f}."
    )


def _rate(point: ScalingPoint, over: int = 1) -> float | None:
    return point.samples_per_second / over if point.profile else None


def _scaling_row(point: ScalingPoint) -> dict[str, object]:
    profile = point.profile
    row: dict[str, object] = {"replicas": point.replicas, "global batch": f"{point.global_batch:,}"}
    if not profile:
        return {**row, "images a second": "refused"}
    code = max(dict(ipu.bytes_by_category).get(EXCHANGE, 0.0) for ipu in profile.memory) / KIB
    return {
        **row,
        "machine": profile.machine.name,
        "images a second": f"{point.samples_per_second:,.0f}",
        "efficiency": f"{point.efficiency:.1%}",
        "all-reduce": f"{profile.shares['collective']:.1%}",
        "streams": f"{profile.shares['stream']:.1%}",
        "code for exchange between IPUs": f"{code:.0f} KiB a tile",
        "fits": engine.fits_in_a_word(profile),
    }


def show_hosts(hosts: Mapping[str, Sequence[ScalingPoint]], fast: Sequence[ScalingPoint]) -> None:
    """Show images a second over replicas for up to 3 ways to feed them; ``fast`` is a host that costs no time."""
    if not fast:
        print(engine.NOT_HERE)
        return
    words = "; ".join(f"{name} {points[-1].samples_per_second:,.0f}" for name, points in hosts.items())
    show.figure(
        throughput_figure(hosts, "Images a second by host (modelled)"),
        f"Images a second against replicas, both logarithmic: each line rises in proportion and then stays flat, the "
        f"later the better the replicas are fed. Modelled with {fast[-1].replicas} replicas: {words}.",
    )
    rows = []
    for name, points in hosts.items():
        most = [point for point, free in zip(points, fast) if _feeds(point, free)]
        rows.append({
            "host": name, "feeds up to": _replicas(most[-1].replicas) if most else "not even 1",
            **{f"{p.replicas}: limited by": "refused" if p.profile is None else limiter(p.profile)
               for p in points if p.replicas in (1, 16, 64)},
        })  # fmt: skip
    show.table(rows, index="host")


def _replicas(count: int) -> str:
    return "1 replica" if count == 1 else f"{count} replicas"


def _feeds(point: ScalingPoint, free: ScalingPoint) -> bool:
    """Whether the IPUs do not wait for this host."""
    return point.profile is not None and point.samples_per_second > 0.999 * free.samples_per_second


def throughput_figure(lines: Mapping[str, Sequence[ScalingPoint]], title: str) -> Figure:
    """Images a second against replicas, both logarithmic."""
    replicas = [point.replicas for point in next(iter(lines.values()))]
    rates = {name: [_rate(point) for point in points] for name, points in lines.items()}
    return figures.curves_figure(
        replicas, rates, REPLICAS, "images a second", title, log_x=True, log_y=True
    )  # fmt: skip
