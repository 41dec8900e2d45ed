"""The benchmark page as data: its command lines, the models they name, its options in PopTorch's terms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Mapping

from ipu_course.data_folder import from_json
from ipu_course.programs.bench.settings import Settings

PAGE_FILE = "cnn_benchmarks.json"


@dataclass(frozen=True)
class Configuration:
    """One command line of the page, the settings it stands for, and the batch sizes it asks for besides.

    ``deviations`` say where the settings are not what the page prints, and why.
    """

    name: str
    title: str
    heading: str
    command_line: str
    settings: Settings
    batch_sizes: tuple[int, ...] = ()
    deviations: tuple[str, ...] = ()


@dataclass(frozen=True)
class OpenPoint:
    """Something that the page leaves open: what was chosen, and why."""

    what: str
    chosen: str
    reason: str


@dataclass(frozen=True)
class PageOption:
    """Options of the page and what they are in PopTorch; ``bench`` is the option of this program, if any."""

    option: str
    bench: str
    poptorch: str
    remark: str


@dataclass(frozen=True)
class Page:
    """The whole page; ``models`` describe networks as ``networks`` builds them."""

    title: str
    source: str
    models: Mapping[str, Mapping[str, Any]]
    open_points: tuple[OpenPoint, ...]
    options: tuple[PageOption, ...]
    configurations: tuple[Configuration, ...]


@lru_cache(maxsize=1)
def benchmark_page() -> Page:
    """The page. Raises ``DataError`` when its file is missing or damaged."""
    return from_json(PAGE_FILE, _page)


def _page(data: Mapping[str, Any]) -> Page:
    return Page(
        title=data["title"],
        source=data["source"],
        models=data["models"],
        open_points=tuple(OpenPoint(**entry) for entry in data["open_points"]),
        options=tuple(PageOption(**entry) for entry in data["options"]),
        configurations=tuple(_configuration(entry, data["models"]) for entry in data["configurations"]),
    )


def _configuration(entry: Mapping[str, Any], models: Mapping[str, Mapping[str, Any]]) -> Configuration:
    values = dict(entry["settings"])
    values["pipeline_splits"] = tuple(values.get("pipeline_splits", ()))
    size = models[values["model"]]["image_size"]
    return Configuration(
        name=entry["name"],
        title=entry["title"],
        heading=entry["heading"],
        command_line=entry["command_line"],
        settings=replace(Settings(model=values["model"], image_size=size), **values),
        batch_sizes=tuple(entry.get("batch_sizes", ())),
        deviations=tuple(entry.get("deviations", ())),
    )
