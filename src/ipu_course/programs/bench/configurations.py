"""Finding a configuration of the page, or the settings of a model, by name."""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import Any, Iterable, Mapping

from ipu_course.errors import SettingsError
from ipu_course.programs.bench.page import Configuration, benchmark_page
from ipu_course.programs.bench.settings import Settings

INFERENCE_ITERATIONS = 100


def all_configurations() -> tuple[Configuration, ...]:
    """All configurations, in the page's order."""
    return benchmark_page().configurations


def configuration(name: str) -> Configuration:
    """The configuration of that name. Raises ``SettingsError`` for others, with the nearest names."""
    known = {each.name: each for each in all_configurations()}
    if name not in known:
        raise SettingsError(f"--config {name}: there is no such configuration; {nearest(name, known)} (--list: all)")
    return known[name]


def model_data(name: str) -> Mapping[str, Any]:
    """What describes the model of that name. Raises ``SettingsError`` for others, with the nearest names."""
    models = benchmark_page().models
    if name not in models:
        raise SettingsError(f"--model {name}: there is no such model; {nearest(name, models)}")
    return models[name]


def settings_of_model(name: str, training: bool = True, **changes: Any) -> Settings:
    """Settings of a model without a configuration: one IPU, its own image size, then ``changes``.

    Raises ``SettingsError`` for unknown models.
    """
    size = model_data(name)["image_size"]
    iterations = 1 if training else INFERENCE_ITERATIONS
    return changed(Settings(name, training=training, image_size=size, device_iterations=iterations), **changes)


def changed(settings: Settings, **changes: Any) -> Settings:
    """The settings with some changed; another model comes with its own image size.

    Raises ``SettingsError`` for unknown models and names of settings.
    """
    model = changes.get("model", settings.model)
    size = model_data(model)["image_size"]
    if model != settings.model:
        changes.setdefault("image_size", size)
    unknown = [name for name in changes if name not in Settings.__dataclass_fields__]
    if unknown:
        raise SettingsError(f"there is no setting {unknown[0]!r}; {nearest(unknown[0], Settings.__dataclass_fields__)}")
    return replace(settings, **changes)


def nearest(name: str, known: Iterable[str]) -> str:
    """The names most like ``name``, as a part of an error message."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    return "nearest: " + ", ".join(close or known[:3])
