"""Throughputs beside each other: with and without images sent, on more IPUs, of other networks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping, Sequence

from ipu_course import figures, show
from ipu_course.lessons.cnn_benchmarks.batches import named, share_of_peak

if TYPE_CHECKING:
    from ipu_course.programs.bench import Result
    from ipu_course.programs.bench.page import Configuration

__all__ = ["command_line_rows", "full_pipeline", "option_value", "show_machines", "show_networks", "show_sent"]


def show_sent(results: Mapping[str, Result | None]) -> None:
    """Show the throughput of benchmarks that differ in what is sent to the IPUs, in the order given."""
    found = named(results)
    if not found:
        return
    first = next(iter(found.values()))
    rates = {name: result.images_per_second for name, result in found.items()}
    title = f"{first.settings.ipus} IPUs, batch {first.settings.batch_size} on each (modelled)"
    words = "; ".join(f"{name} {rate:,.0f}" for name, rate in rates.items())
    show.figure(
        figures.bars_figure(list(rates), {"modelled": list(rates.values())}, "images a second", title, form="{:,.0f}"),
        f"Images a second of {title}: {words}. The more is sent, the lower the rate.",
    )
    show.table(
        [
            {
                "data": name,
                "of the rate without sending": f"{rate / first.images_per_second:.0%}",
                "sending": f"{found[name].profile.shares['stream']:.0%} of the time",
                "latency": f"{1e3 * (found[name].latency_seconds or 0):.2f} ms",
                "host sends": f"{found[name].loader_bytes_per_second / 1e9:.1f} GB/s",
                "limited by": found[name].profile.limited_by,
            }
            for name, rate in rates.items()
        ],
        index="data",
    )


def full_pipeline(accumulation: int, stages: int) -> float:
    """The closed form for a pipeline: micro-batches of an update by its pipeline cycles, G / (G + 2 (K - 1))."""
    return accumulation / (accumulation + 2 * (stages - 1))


def show_machines(results: Sequence[Result | None]) -> None:
    """Show how the throughput of training grows from the first machine to the others, beside IPUs."""
    found = list(named({str(number): result for number, result in enumerate(results)}).values())
    if not found:
        return
    first = found[0]
    ipus = [result.settings.ipus / first.settings.ipus for result in found]
    times = [result.images_per_second / first.images_per_second for result in found]
    labels = [f"{result.settings.machine}, {result.settings.ipus} IPUs" for result in found]
    words = "; ".join(f"{label}: {more:g} and {faster:.2f}" for label, more, faster in zip(labels, ipus, times))
    show.figure(
        figures.bars_figure(
            labels,
            {"IPUs": ipus, "images a second": times},
            f"times those of {first.settings.ipus} IPUs",
            "More IPUs at the same global batch (modelled)",
            form="{:.4g}",
        ),
        f"IPUs and images a second, as multiples of the first machine's: {words}. Modelled.",
    )
    show.table([_machine_row(result) for result in found], index="machine")


def _machine_row(result: Result) -> dict[str, object]:
    settings, shares = result.settings, result.profile.shares
    return {
        "machine": settings.machine,
        "replicas": settings.replicas,
        "accumulation": settings.gradient_accumulation,
        "global batch": f"{settings.global_batch:,}",
        "images/s": f"{result.images_per_second:,.0f}",
        "G / (G + 2 (K - 1))": f"{full_pipeline(settings.gradient_accumulation, settings.shards):.1%}",
        "filling, flushing": f"{shares['fill and flush']:.1%}",
        "between replicas": f"{shares['collective']:.1%}",
    }


def show_networks(results: Mapping[str, Result | None]) -> None:
    """Show images a second of networks beside their operations, and the share of the peak that these are."""
    found = named(results)
    if not found:
        return
    shares = [share_of_peak(result) for result in found.values()]
    words = "; ".join(f"{name} {share:.0%}" for name, share in zip(found, shares))
    show.figure(
        figures.bars_figure(
            list(found), {"modelled": shares}, "of the peak", "Use of the matrix units (modelled)", percent=True
        ),
        f"Share of the matrix units' peak that each network's rate amounts to, modelled: {words}.",
    )
    show.table(
        [
            {
                "network": name,
                "images/s": f"{result.images_per_second:,.0f}",
                "GFLOP an image": f"{result.profile.flops_per_call / result.profile.samples_per_call / 1e9:.2f}",
                "TFLOP/s": f"{result.teraflops_per_ipu:.1f}",
                "of peak": f"{share:.0%}",
            }
            for (name, result), share in zip(found.items(), shares)
        ],
        index="network",
    )


def option_value(command_line: str, option: str) -> str:
    """The value of an option as a command line prints it, "-" where it has none."""
    words = command_line.replace("=", " ").split()
    return words[words.index(option) + 1] if option in words else "-"


def command_line_rows(configurations: Sequence[Configuration]) -> list[dict[str, object]]:
    """Command lines of the page as a table: their headings, and what the lines themselves print.

    Replicas are those of poprun, or the program's own, or one.
    """
    rows: list[dict[str, object]] = []
    for number, each in enumerate(configurations, 1):
        line = each.command_line
        printed = [option_value(line, option) for option in ("--num-replicas", "--replicas")]
        heading = each.heading.split(" / ", 1)[1].replace(" Training", "").replace("1 x IPU-", "")
        rows.append({
            "line": number,
            "heading": heading,
            "--group-dim": option_value(line, "--group-dim"),
            "--expand-ratio": option_value(line, "--expand-ratio"),
            "--batch-size": option_value(line, "--batch-size"),
            "accumulation": option_value(line, "--gradient-accumulation-count"),
            "replicas": next((value for value in printed if value != "-"), "1"),
            "--eight-bit-io": "yes" if "--eight-bit-io" in line else "no",
        })  # fmt: skip
    return rows
