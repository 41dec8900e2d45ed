"""The benchmark page as data, and its configurations and models by name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Mapping

from ipu_course.data_folder import from_json
from ipu_course.errors import SettingsError
from ipu_course.programs.bench.settings import BenchSettings
from ipu_course.programs.options import nearest

PAGE_FILE = "cnn_benchmarks.json"
INFERENCE_ITERATIONS = 100


@dataclass(frozen=True)
class Configuration:
    """One command line of the page, the settings it stands for, and the batch sizes it asks for besides.

    ``deviations`` say where the settings are not what the page prints, and why.
    """

    name: str
    title: str
    heading: str
    command_line: str
    settings: BenchSettings
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
    """Read the page. Raises ``DataError`` when its file is missing or damaged."""
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
        settings=replace(BenchSettings(model=values["model"], image_size=size), **values),
        batch_sizes=tuple(entry.get("batch_sizes", ())),
        deviations=tuple(entry.get("deviations", ())),
    )


def all_configurations() -> tuple[Configuration, ...]:
    """Return all configurations, in the page's order."""
    return benchmark_page().configurations


def configuration(name: str) -> Configuration:
    """Return the configuration of that name. Raises ``SettingsError`` for other names, with the nearest ones."""
    known = {each.name: each for each in all_configurations()}
    if name not in known:
        raise SettingsError(f"--config {name}: there is no such configuration; {nearest(name, known)} (--list: all)")
    return known[name]


def model_data(name: str) -> Mapping[str, Any]:
    """Return what describes the model of that name. Raises ``SettingsError`` for other names, with the nearest ones."""
    models = benchmark_page().models
    if name not in models:
        raise SettingsError(f"--model {name}: there is no such model; {nearest(name, models)}")
    return models[name]


def settings_of_model(name: str, training: bool = True, **changes: Any) -> BenchSettings:
    """BenchSettings of a model without a configuration: one IPU, its own image size, then ``changes``.

    Raises ``SettingsError`` for unknown models.
    """
    size = model_data(name)["image_size"]
    iterations = 1 if training else INFERENCE_ITERATIONS
    return changed(BenchSettings(name, training=training, image_size=size, device_iterations=iterations), **changes)


def changed(settings: BenchSettings, **changes: Any) -> BenchSettings:
    """Return the settings with some of them changed; another model comes with its own image size.

    Raises ``SettingsError`` for unknown models and names of settings.
    """
    model = changes.get("model", settings.model)
    size = model_data(model)["image_size"]
    if model != settings.model:
        changes.setdefault("image_size", size)
    unknown = [name for name in changes if name not in BenchSettings.__dataclass_fields__]
    if unknown:
        raise SettingsError(
            f"there is no setting {unknown[0]!r}; {nearest(unknown[0], BenchSettings.__dataclass_fields__)}"
        )
    return replace(settings, **changes)
