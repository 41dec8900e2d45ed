"""What ``bench`` does: model, measure, print, write files."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Iterable, Mapping, Sequence

from tqdm import tqdm

from ipu_course import engine
from ipu_course.errors import CourseError
from ipu_course.programs.bench import report
from ipu_course.programs.bench.page import (
    Configuration,
    all_configurations,
    benchmark_page,
    changed,
    configuration,
    settings_of_model,
)
from ipu_course.programs.bench.report import STANDARD_OUTPUT, csv_text, json_text, record, rows, text_table, write
from ipu_course.programs.bench.results import Result, check, modelled_result, page_results, sweep_points
from ipu_course.programs.bench.settings import RUN_BATCH, RUN_STEPS, BenchSettings
from ipu_course.programs.text import wrapped

NOTES = (
    "All figures are modelled by the IPU Model, none is measured. images/s: the first step left out; in brackets: what "
    "a program that does not fit would do. error band: by how much the hardware's rate may differ. fits: close is too "
    "close to call. loader MB/s: images that the host has to give so that the IPUs never wait; its own time is not "
    "modelled."
)


def run_program(parsed: argparse.Namespace, changes: Mapping[str, Any]) -> None:
    """Do what the arguments of the sub-command say. Raises ``CourseError`` when it cannot be done."""
    if parsed.list:
        print(listing())
    elif parsed.all:
        _need_engine()
        _show(parsed, benchmark_page().title, page_results(_bar))
    else:
        of, settings = _chosen(parsed, changes)
        if parsed.sweep:
            _sweep(parsed, of, settings)
        else:
            _one(parsed, of, settings)


def listing() -> str:
    """Names of configurations and models."""
    known = all_configurations()
    width = max(len(each.name) for each in known)
    lines = [f"  {each.name.ljust(width)}  {each.title}{_batch_sizes(each)}" for each in known]
    models = (f"  {name.ljust(width)}  {data['title']}" for name, data in benchmark_page().models.items())
    return "\n".join(["configurations (--config)", *lines, "models (--model)", *models])


def _batch_sizes(of: Configuration) -> str:
    return f", batch {', '.join(map(str, of.batch_sizes))}" if of.batch_sizes else ""


def _chosen(parsed: argparse.Namespace, changes: Mapping[str, Any]) -> tuple[Configuration | None, BenchSettings]:
    if parsed.config:
        of = configuration(parsed.config)
        return of, changed(of.settings, **changes)
    others = {name: value for name, value in changes.items() if name not in ("model", "training")}
    training = changes.get("training", True)
    return None, settings_of_model(changes["model"], training, **others)


def _need_engine() -> None:
    if not engine.is_available():
        raise CourseError(f"{engine.NOT_HERE} --run measures a benchmark on what is here.")


def _bar(points: Sequence[tuple[str, BenchSettings]]) -> Iterable[tuple[str, BenchSettings]]:
    # disable=None: a bar only where there is a terminal to redraw it.
    return tqdm(points, desc="modelling", unit="result", disable=None, leave=False, file=sys.stderr)


def _prints_data(parsed: argparse.Namespace) -> bool:
    return STANDARD_OUTPUT in (parsed.json, parsed.csv)


def _sweep(parsed: argparse.Namespace, of: Configuration | None, settings: BenchSettings) -> None:
    _need_engine()
    sizes = parsed.batch_sizes or (of.batch_sizes if of else None) or None
    name = of.name if of else settings.model
    points = sweep_points(settings, sizes, name)
    for _, each in points:
        check(each)
    results = [result for point in _bar(points) if (result := modelled_result(point[1], name)) is not None]
    title = f"{of.title if of else name}: batch sizes"
    _show(parsed, title, results)
    if parsed.figure:
        from ipu_course.figures import png
        from ipu_course.programs.bench.figure import description, sweep_figure  # imports matplotlib

        write(png(sweep_figure(results, f"{title} (modelled)")), parsed.figure, "--figure")
        if not _prints_data(parsed):
            print(f"Figure {parsed.figure}: {description(results)}")


def _show(parsed: argparse.Namespace, title: str, results: Sequence[Result]) -> None:
    _write_data(parsed, [record(result) for result in results])
    if _prints_data(parsed):
        return
    print(f"{title}\n\n{text_table(rows(results))}\n")
    print("\n".join(wrapped(NOTES)))
    for lines in _problems(results):
        print(lines)


def _problems(results: Sequence[Result]) -> Iterable[str]:
    """Say which results may not fit and what helps; results that need the same remedy share one line."""
    by_remedy: dict[str, list[str]] = {}
    for result in results:
        if not result.is_sure_to_fit:
            which = f"{result.name}, batch {result.settings.batch_size}, {result.verdict}"
            by_remedy.setdefault(report.remedies(result), []).append(which)
    for remedy, them in by_remedy.items():
        yield "\n".join(wrapped(f"{'; '.join(them)}. {remedy}"))


def _write_data(parsed: argparse.Namespace, records: Sequence[dict[str, Any]]) -> None:
    for option, target, text in (("--json", parsed.json, json_text), ("--csv", parsed.csv, csv_text)):
        if target:
            write(text(records), target, option)


def _one(parsed: argparse.Namespace, of: Configuration | None, settings: BenchSettings) -> None:
    check(settings)
    quiet = _prints_data(parsed)
    if not parsed.execute:
        _need_engine()
    if not quiet:
        print(report.heading(settings, of), flush=True)
    result = modelled_result(settings, of.name if of else settings.model)
    if not quiet:
        print(report.result_text(result) if result else engine.NOT_HERE, flush=True)
    data: dict[str, Any] = record(result) if result else {"configuration": of.name if of else settings.model}
    if parsed.execute:
        data["measured"] = _measured(parsed, settings, quiet)
    _write_data(parsed, [data])


def _measured(parsed: argparse.Namespace, settings: BenchSettings, quiet: bool) -> dict[str, Any]:
    """Execute some steps, print what was measured, and give it as a record."""
    from ipu_course.programs.bench.measured import measure, reduced  # imports torch and poptorch

    small = reduced(
        settings, parsed.run_batch_size or RUN_BATCH, parsed.run_accumulation, parsed.run_steps or RUN_STEPS
    )
    found = measure(small)
    if not quiet:
        print(report.measured_text(found))
    return report.measured_record(found)
