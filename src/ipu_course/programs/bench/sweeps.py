"""Many results: one benchmark over batch sizes, and the whole page."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Iterable, Iterator, Sequence, TypeVar

from ipu_course import engine
from ipu_course.programs.bench.configurations import all_configurations
from ipu_course.programs.bench.page import Configuration
from ipu_course.programs.bench.results import Result, modelled_result
from ipu_course.programs.bench.settings import Settings

Item = TypeVar("Item")
Watch = Callable[[Sequence[Item]], Iterable[Item]]


def sweep(of: Settings | Configuration, batch_sizes: Sequence[int] | None = None, name: str = "") -> tuple[Result, ...]:
    """One result for each batch size; the page's, or those around the settings' own, by default.

    Nothing without an IPU Model. Raises ``CourseError`` as ``modelled_result`` does.
    """
    return tuple(_modelled(sweep_points(of, batch_sizes, name)))


def sweep_points(
    of: Settings | Configuration, batch_sizes: Sequence[int] | None = None, name: str = ""
) -> list[tuple[str, Settings]]:
    """What ``sweep`` models: names and settings."""
    if isinstance(of, Settings):
        sizes = batch_sizes or around(of.batch_size)
        return [(name or of.model, replace(of, batch_size=size)) for size in sizes]
    sizes = batch_sizes or of.batch_sizes or around(of.settings.batch_size)
    return [(name or of.name, replace(of.settings, batch_size=size)) for size in sizes]


def around(batch_size: int) -> tuple[int, ...]:
    """Batch sizes from a quarter to twice of one."""
    return tuple(sorted({max(1, batch_size // 4), max(1, batch_size // 2), batch_size, 2 * batch_size}))


def page_points() -> list[tuple[str, Settings]]:
    """Every command line of the page with every batch size it asks for: names and settings."""
    return [
        point for each in all_configurations() for point in sweep_points(each, each.batch_sizes or None)
        if each.batch_sizes or point[1] == each.settings
    ]  # fmt: skip


def page_results(watch: Watch[tuple[str, Settings]] = lambda points: points) -> tuple[Result, ...]:
    """The results of the whole page; ``watch`` goes through the work, as tqdm does. Nothing without an IPU Model."""
    return tuple(_modelled(watch(page_points())))


def _modelled(points: Iterable[tuple[str, Settings]]) -> Iterator[Result]:
    if not engine.is_available():
        return
    for name, settings in points:
        result = modelled_result(settings, name)
        if result is not None:
            yield result
