"""What a table of throughputs says, and what stands behind it: steps, batch sizes, latency, memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping, Sequence

from ipu_course import engine, figures, show
from ipu_course.lessons.cnn_benchmarks.benchmark_figure import latency_figure, throughput_figure

if TYPE_CHECKING:
    from ipu_course.programs.bench import Result

__all__ = [
    "peak_flops",
    "rate_band",
    "share_of_peak",
    "show_batches",
    "show_fit",
    "show_latencies",
    "show_steps",
    "step_averages",
]

# Mk2: a tile's matrix unit makes 64 products and 64 sums of 16-bit numbers in each cycle, with half partials.
FLOPS_PER_TILE_AND_CYCLE = 128


def peak_flops(result: Result) -> float:
    """Floating-point operations a second of one IPU's matrix units: 16-bit numbers, half partials."""
    machine = result.profile.machine
    return machine.tiles * machine.clock_hz * FLOPS_PER_TILE_AND_CYCLE


def share_of_peak(result: Result) -> float:
    """The part of the peak that the rate amounts to, from 0 to 1."""
    return result.teraflops_per_ipu * 1e12 / peak_flops(result)


def rate_band(result: Result) -> tuple[float, float]:
    """The lowest and the highest images a second within the error band, which is of the device's time."""
    band = result.profile.error_band
    return result.images_per_second / band.high, result.images_per_second / band.low


def step_averages(result: Result) -> dict[str, tuple[float, float]]:
    """Images a second by how they are averaged: (program from a cache, program compiled in the first step)."""
    step, count = result.profile.call_seconds, result.settings.repeat
    images = result.settings.images_per_step
    firsts = [result.start_seconds + step]
    firsts.append(firsts[0] + result.profile.compilation_seconds)
    later = [images / step] * (count - 1)
    rates = {
        "the first value": [images / first for first in firsts],
        f"average of all {count} values": [(images / first + sum(later)) / count for first in firsts],
        "average without the first": [sum(later) / len(later) if later else images / step for _ in firsts],
        "all images by all seconds": [count * images / (first + (count - 1) * step) for first in firsts],
    }
    return {name: (cached, compiled) for name, (cached, compiled) in rates.items()}


def show_steps(result: Result | None) -> None:
    """Show the modelled throughput of one run, averaged in several ways."""
    if result is None:
        print(engine.NOT_HERE)
        return
    show.table(
        [
            {"images a second": name, "program from a cache": f"{cached:,.0f}", "compiled first": f"{compiled:,.0f}"}
            for name, (cached, compiled) in step_averages(result).items()
        ],
        index="images a second",
    )


def show_batches(results: Sequence[Result]) -> None:
    """Show throughput over batch sizes with its error band, and how much of the peak it is."""
    if not results:
        print(engine.NOT_HERE)
        return
    batches = [result.settings.batch_size for result in results]
    rates = [result.images_per_second for result in results]
    bands = [rate_band(result) for result in results]
    words = ", ".join(f"{batch}: {rate:,.0f}" for batch, rate in zip(batches, rates))
    show.figure(
        throughput_figure(batches, rates, bands, f"{results[0].name} (modelled)"),
        f"Images a second against the batch size: a curve that rises ever more slowly. Modelled, by batch: {words}. "
        f"At batch {batches[-1]} the error band is from {bands[-1][0]:,.0f} to {bands[-1][1]:,.0f}.",
    )
    show.table([_batch_row(result) for result in results], index="batch")


def _batch_row(result: Result) -> dict[str, object]:
    cycles = result.profile.cycles[0]
    low, high = rate_band(result)
    return {
        "batch": result.settings.batch_size,
        "images/s": f"{result.images_per_second:,.0f}",
        "error band": f"{low:,.0f} to {high:,.0f}",
        "ms a batch": f"{1e3 * result.settings.images_per_batch / result.images_per_second:.2f}",
        "exchange and sync": f"{(cycles.do_exchange + cycles.internal_sync) / cycles.total:.0%}",
        "of peak": f"{share_of_peak(result):.0%}",
    }


def show_latencies(results: Sequence[Result], budget_ms: float) -> None:
    """Show throughput against latency, a point for each batch size, and a line at the budget."""
    if not results:
        print(engine.NOT_HERE)
        return
    points = [
        (result.settings.batch_size, 1e3 * (result.latency_seconds or 0.0), result.images_per_second)
        for result in results
    ]
    words = ", ".join(f"{batch}: {milliseconds:.2f}" for batch, milliseconds, _ in points)
    show.figure(
        latency_figure({results[0].name: points}, budget_ms, f"{results[0].name}: both columns in one (modelled)"),
        "Images a second against the latency of one batch, a point for each batch size: both grow together. Modelled "
        f"latency in ms, by batch: {words}. A line marks {budget_ms:g} ms.",
    )
    show.table([_latency_row(result, budget_ms) for result in results], index="batch")


def _latency_row(result: Result, budget_ms: float) -> dict[str, object]:
    latency = 1e3 * (result.latency_seconds or 0.0)
    steady = 1e3 * result.settings.images_per_batch / result.images_per_second
    return {
        "batch": result.settings.batch_size,
        "latency": f"{latency:.2f} ms",
        "in a long loop": f"{steady:.2f} ms",
        "the call alone": f"{latency - steady:.2f} ms",
        f"within {budget_ms:g} ms": "yes" if latency <= budget_ms else "no",
        "images/s of single calls": f"{1e3 * result.settings.images_per_batch / latency:,.0f}",
    }


def show_fit(results: Sequence[Result]) -> None:
    """Show the fullest tile of several benchmarks beside what a tile has."""
    if not results:
        print(engine.NOT_HERE)
        return
    labels = [f"{result.name}, batch {result.settings.batch_size}" for result in results]
    kib = [result.tile_kib for result in results]
    limit = results[0].tile_limit_kib
    words = ", ".join(f"{label} {size:.0f} ({result.verdict})" for label, size, result in zip(labels, kib, results))
    show.figure(
        figures.bars_figure(
            labels,
            {"modelled": kib},
            "KiB on the fullest tile",
            "What still fits (modelled)",
            form="{:.0f}",
            limit=(limit, f"{limit:.0f} KiB"),
        ),
        f"KiB on the fullest tile, modelled: {words}. A tile has {limit:.0f}.",
    )
    show.table(
        [
            {
                "benchmark": label,
                "of a tile": f"{result.tile_kib / limit:.0%}",
                "fits": engine.FITS_CELLS[result.verdict],
            }
            for label, result in zip(labels, results)
        ],
        index="benchmark",
    )


def named(results: Mapping[str, Result | None]) -> dict[str, Result]:
    """The results there are, by name; says so where there is none."""
    found = {name: result for name, result in results.items() if result is not None}
    if not found:
        print(engine.NOT_HERE)
    return found
