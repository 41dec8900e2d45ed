"""Modelled benchmarks of the page: averages over steps, throughput over batch sizes, and what fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, Sequence

from ipu_course import engine, show
from ipu_course.lessons.cnn_benchmarks.benchmark_figure import throughput_figure
from ipu_course.programs.bench import changed, configuration, modelled_result, sweep

if TYPE_CHECKING:
    from ipu_course.programs.bench import Result

__all__ = [
    "modelled",
    "modelled_batches",
    "peak_flops",
    "share_of_peak",
    "show_batches",
    "show_steps",
    "step_averages",
]

# Mk2: a tile's matrix unit makes 64 products and 64 sums of 16-bit numbers in each cycle, with half partials.
FLOPS_PER_TILE_AND_CYCLE = 128


def modelled(name: str, **changes: Any) -> Result:
    """Return the modelled result of a configuration of the page, such as "resnet50-infer-synthetic", with changes.

    Where there is no IPU Model, it is ``engine.NOT_MODELLED``. Raises ``CourseError`` for unknown names and settings.
    """
    result: Any = modelled_result(changed(configuration(name).settings, **changes), name)
    return engine.NOT_MODELLED if result is None else result  # type: ignore[no-any-return]


def modelled_batches(name: str, batch_sizes: Sequence[int] | None = None, **changes: Any) -> Sequence[Result]:
    """Return one modelled result for each batch size, by default those of the page.

    Where there is no IPU Model, it is ``engine.NOT_MODELLED``. Raises ``CourseError`` as ``modelled`` does.
    """
    page = configuration(name)
    results: Any = sweep(changed(page.settings, **changes), batch_sizes or page.batch_sizes, name)
    return results or engine.NOT_MODELLED  # type: ignore[no-any-return]


def peak_flops(result: Result) -> float:
    """Return the floating-point operations a second of one IPU's matrix units: 16-bit numbers, half partials."""
    machine = result.profile.machine
    return machine.tiles * machine.clock_hz * FLOPS_PER_TILE_AND_CYCLE


def share_of_peak(result: Result) -> float:
    """Return the share of the peak that the rate amounts to, from 0 to 1."""
    return result.teraflops_per_ipu * 1e12 / peak_flops(result)


def step_averages(result: Result) -> dict[str, tuple[float, float]]:
    """Return images per second by how they are averaged: (program from a cache, program compiled in the first step)."""
    step, count = result.profile.call_seconds, result.settings.repeat
    images = result.settings.images_per_step
    firsts = [result.start_seconds + step]
    firsts.append(firsts[0] + result.profile.compilation_seconds)
    later = [images / step] * (count - 1)
    rates = {
        "the first value": [images / first for first in firsts],
        f"average of all {count} values": [(images / first + sum(later)) / count for first in firsts],
        "average without the first": [sum(later) / len(later) if later else images / step for _ in firsts],
        "all images divided by all seconds": [count * images / (first + (count - 1) * step) for first in firsts],
    }
    return {name: (cached, compiled) for name, (cached, compiled) in rates.items()}


def show_steps(result: Result) -> None:
    """Show the modelled throughput of one run, averaged in several ways."""
    if result is engine.NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    show.table(
        [
            {"images/s": name, "program from a cache": f"{cached:,.0f}", "compiled first": f"{compiled:,.0f}"}
            for name, (cached, compiled) in step_averages(result).items()
        ],
        index="images/s",
    )


def show_batches(results: Sequence[Result], published: Mapping[int, float]) -> None:
    """Show throughput over batch sizes with its error band and the published rates, and what it uses of the chip."""
    if not results:
        print(engine.NOT_HERE)
        return
    batches = [result.settings.batch_size for result in results]
    rates = [result.images_per_second for result in results]
    bands = [(rate * result.rate_band[0], rate * result.rate_band[1]) for rate, result in zip(rates, results)]
    best = batches[rates.index(max(rates))]
    words = ", ".join(f"{batch}: {rate:,.0f}" for batch, rate in zip(batches, rates))
    beside = ", ".join(f"{batch}: {rate:,.0f}" for batch, rate in published.items())
    show.figure(
        throughput_figure(batches, rates, bands, published, "ResNet-50 on one C600"),
        f"Every further image gains less than the one before, and beyond batch {best} the rate falls.",
        f"Images per second against the batch size. The curve rises ever more slowly, up to batch {best}. Modelled, by "
        f"batch: {words}. "
        f"Published: {beside}. At batch {batches[-1]} the error band is from {bands[-1][0]:,.0f} to "
        f"{bands[-1][1]:,.0f}.",
    )
    show.table([_batch_row(result) for result in results], index="batch")


def _batch_row(result: Result) -> dict[str, object]:
    return {
        "batch": result.settings.batch_size,
        "images/s (modelled)": f"{result.images_per_second:,.0f}",
        "fullest tile": f"{result.tile_kib:.0f} KiB, {result.verdict}",
        "share of the matrix units' peak": f"{share_of_peak(result):.0%}",
    }
