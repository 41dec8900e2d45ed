"""What the program prints and writes: text for one benchmark, tables, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Iterable, Sequence

from ipu_course.errors import CourseError
from ipu_course.programs.bench.page import Configuration
from ipu_course.programs.bench.results import Result
from ipu_course.programs.bench.settings import BenchSettings
from ipu_course.programs.text import aligned, counted, wrapped
from ipu_course.whole_files import write_whole

if TYPE_CHECKING:
    from ipu_course.programs.bench.measured import Measured

NUMBERS = ("batch", "IPUs", "images/s", "latency ms", "KiB on a tile", "loader MB/s")
WORDS = {"fits": "yes", "too close to call": "close", "does not fit": "no"}
STANDARD_OUTPUT = "-"
SHOWN_STEPS = 3
OWN_REMEDIES = (
    "Here: a smaller --batch-size with more --gradient-accumulation, --precision 16.16, other --pipeline-splits, more "
    "--shards."
)


def heading(settings: BenchSettings, of: Configuration | None) -> str:
    """Say what is modelled: the page's command line, if there is one, and the arithmetic of a step."""
    lines = [of.title if of else f"{settings.model}, {'training' if settings.training else 'inference'}"]
    if of:
        lines += wrapped(f"The page: {of.command_line}", "  ")
        if of.settings != settings:
            lines += wrapped(f"Changed: {', '.join(_changes(of.settings, settings))}", "  ")
        lines += [line for note in of.deviations for line in wrapped(f"Note: {note}", "  ")]
    return "\n".join([*lines, *wrapped(step_text(settings), "  ")])


def _changes(before: BenchSettings, after: BenchSettings) -> list[str]:
    names = [name for name in BenchSettings.__dataclass_fields__ if getattr(before, name) != getattr(after, name)]
    return [f"{name.replace('_', ' ')} {_word(getattr(after, name))}" for name in names]


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(value) or "none"
    return str(value)


def step_text(settings: BenchSettings) -> str:
    """Write a step as a product, and say where it runs."""
    return f"{_product(settings)}, on {counted(settings.ipus, 'IPU')} of {settings.machine}."


def _product(settings: BenchSettings) -> str:
    factors = [f"batch {settings.batch_size}", counted(settings.replicas, "replica")]
    if settings.training:
        factors.append(f"{counted(settings.gradient_accumulation, 'micro-batch', 'es')} an update")
    if settings.device_iterations > 1:
        factors.append(f"{settings.device_iterations} device iterations")
    size = f"{settings.image_size} x {settings.image_size}"
    return f"A step: {counted(settings.images_per_step, 'image')} of {size} ({' x '.join(factors)})"


def result_text(result: Result) -> str:
    """Return the modelled figures, one on each line."""
    profile = result.profile
    lines = [f"Modelled (IPU Model, {profile.machine}):"]
    if result.verdict == "does not fit":
        lines.append("  does not fit into memory: the rates are those it would have")
    low, high = (100 * (factor - 1) for factor in result.rate_band)
    rate = f"{result.images_per_second:,.0f} images/s ({low:+.0f} % to {high:+.0f} %)"
    lines += [
        f"  throughput   {rate}, the first step left out",
        *wrapped(f"steps        {_steps(result.step_rates)} images/s; the first one includes {_start(result)}", "  "),
        *_latency(result),
        f"  memory       {_kib(result)} on the fullest tile: {result.verdict}",
        f"  limited by   {profile.limited_by}",
        *wrapped(f"loader       {_loader(result)}", "  "),
        f"  compilation  {profile.compilation_seconds:.0f} s, before the first step",
    ]
    if result.remedies:
        lines += wrapped(remedies(result), "  ")
    lines += [line for note in _own_notes(result) for line in wrapped(f"Note: {note}", "  ")]
    return "\n".join(lines)


def _kib(result: Result) -> str:
    return f"{result.tile_kib:.0f} of {result.tile_limit_kib:.0f} KiB"


def remedies(result: Result) -> str:
    """Say what helps a program that may not fit, in the terms of PopTorch and of this command."""
    return f"What usually helps: {'; '.join(result.remedies)}. {OWN_REMEDIES}"


def _own_notes(result: Result) -> Sequence[str]:
    """Return the profile's notes without those on memory, which repeat what is said already."""
    return [note for note in result.profile.notes if not note.startswith("Memory")]


def _steps(rates: Sequence[float]) -> str:
    shown = ", ".join(f"{rate:,.0f}" for rate in rates[:SHOWN_STEPS])
    return shown + (f", ... ({len(rates)} steps, alike from the second on)" if len(rates) > SHOWN_STEPS else "")


def _start(result: Result) -> str:
    return f"{1000 * result.start_seconds:.0f} ms for sending code and weights, and not the compilation"


def _latency(result: Result) -> list[str]:
    if result.latency_seconds is None or result.latency_device_seconds is None:
        return []
    settings = result.settings
    batches = settings.least_iterations
    what = f"{batches} batches, one for each stage," if batches > 1 else "one batch"
    return wrapped(
        f"latency      {1000 * result.latency_seconds:.2f} ms from the call to its result, for a call of {what} of "
        f"{settings.batch_size} x {settings.replicas} images; {1000 * result.latency_device_seconds:.2f} ms of it on "
        "the device",
        "  ",
    )


def _loader(result: Result) -> str:
    if not result.loader_images_per_second:
        return "none needed: synthetic data are made on the IPU"
    return (
        f"has to give {result.loader_images_per_second:,.0f} images/s, "
        f"{result.loader_bytes_per_second / 1e6:,.0f} MB/s, so that the IPUs never wait; its own time is not modelled"
    )


def measured_text(measured: Measured) -> str:
    """Say what was executed, and how fast."""
    settings = measured.settings
    seconds = ", ".join(f"{each:.2f}" for each in measured.step_seconds)
    kind = "training" if settings.training else "inference"
    stages = f", in {settings.shards} stages" if settings.shards > 1 else ""
    executed = f"{kind}, {settings.repeat} steps with random images. {_product(settings)}{stages}."
    lines = [
        f"Measured on this machine's {measured.machine}, not on what is modelled:",
        *wrapped(f"executed     {executed}", "  "),
        f"  throughput   {measured.images_per_second:,.2f} images/s, the first step left out",
        f"  steps        {seconds} s; the first one includes compilation",
    ]
    return "\n".join(lines)


def measured_record(measured: Measured) -> dict[str, object]:
    """Return what was measured as plain values, with units in the names."""
    return {
        "images_per_second": measured.images_per_second,
        "step_seconds": list(measured.step_seconds),
        "machine": measured.machine,
        "executed": asdict(measured.settings),
    }


def rows(results: Iterable[Result]) -> list[dict[str, object]]:
    """Return one row for each result, as ``ipu_course.show.table`` takes them; figures are modelled.

    Rates of what does not fit stand in brackets: they would be so.
    """
    return [_row(result) for result in results]


def _row(result: Result) -> dict[str, object]:
    settings = result.settings
    rate = f"{result.images_per_second:,.0f}"
    latency = result.latency_seconds
    return {
        "configuration": result.name,
        "batch": settings.batch_size,
        "IPUs": settings.ipus,
        "images/s": f"({rate})" if result.verdict == "does not fit" else rate,
        "error band": _percent(result),
        "latency ms": "-" if latency is None else f"{1000 * latency:.2f}",
        "KiB on a tile": f"{result.tile_kib:.0f}",
        "fits": WORDS[result.verdict],
        "limited by": result.profile.limited_by,
        "loader MB/s": f"{result.loader_bytes_per_second / 1e6:,.0f}",
    }


def _percent(result: Result) -> str:
    low, high = (100 * (factor - 1) for factor in result.rate_band)
    return f"{low:+.0f} to {high:+.0f} %"


def text_table(lines: Sequence[dict[str, object]]) -> str:
    """Return rows as text in aligned columns, numbers to the right."""
    if not lines:
        return ""
    heads = list(lines[0])
    left = [column for column, head in enumerate(heads) if head not in NUMBERS]
    return aligned([heads, *([str(line[head]) for head in heads] for line in lines)], left)


def record(result: Result) -> dict[str, Any]:
    """Return a result as plain values, with units in the names; all figures are modelled."""
    profile, memory = result.profile, result.profile.memory
    return {
        "configuration": result.name,
        "settings": asdict(result.settings),
        "modelled": {
            "images_per_second": result.images_per_second,
            "images_per_second_of_each_step": list(result.step_rates),
            "error_band_of_images_per_second": list(result.rate_band),
            "step_seconds": profile.call_seconds,
            "images_per_step": result.settings.images_per_step,
            "start_seconds": result.start_seconds,
            "compilation_seconds": profile.compilation_seconds,
            "latency_seconds": result.latency_seconds,
            "latency_device_seconds": result.latency_device_seconds,
            "fits": result.verdict,
            "bytes_on_fullest_tile": memory.max_tile_bytes,
            "bytes_of_a_tile": memory.tile_bytes,
            "bytes_on_fullest_tile_of_each_ipu": [ipu.max_tile_bytes for ipu in memory],
            "limited_by": profile.limited_by,
            "loader_images_per_second": result.loader_images_per_second,
            "loader_bytes_per_second": result.loader_bytes_per_second,
            "teraflops_per_ipu": result.teraflops_per_ipu,
            "notes": list(profile.notes),
            "remedies": list(result.remedies),
        },
    }


def json_text(records: Sequence[dict[str, Any]]) -> str:
    """Records as a JSON list."""
    return json.dumps(list(records), indent=1) + "\n"


def csv_text(records: Sequence[dict[str, Any]]) -> str:
    """Records as CSV: a line each, columns named by the way to the value; lists are one text."""
    lines = [dict(_flat(record)) for record in records]
    columns = list(dict.fromkeys(name for line in lines for name in line))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return buffer.getvalue()


def _flat(record: dict[str, Any], way: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in record.items():
        if isinstance(value, dict):
            found += _flat(value, f"{way}{name}.")
        else:
            found.append((way + name, "; ".join(map(str, value)) if isinstance(value, (list, tuple)) else value))
    return found


def write(content: str | bytes, target: str, option: str) -> None:
    """Write a file, or to the standard output for "-". Raises ``CourseError`` where it cannot be written."""
    if target == STANDARD_OUTPUT and isinstance(content, str):
        sys.stdout.write(content)
        return
    try:
        write_whole(target, content)
    except OSError as problem:
        raise CourseError(f"{option} {target} cannot be written ({problem.strerror}); choose another file") from problem
