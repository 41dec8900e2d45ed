"""Names of layers: where a pipeline may be split, in the page's names and in those of modules."""

from __future__ import annotations

import math
import re
from typing import Sequence

from ipu_course.errors import SettingsError
from ipu_course.programs.bench.page import model_data
from ipu_course.programs.bench.settings import BenchSettings
from ipu_course.programs.options import nearest

RESNET_STEM = ("conv1", "bn1", "relu", "maxpool")
RESNET_HEAD = ("avgpool", "fc")
# Blocks of EfficientNet-B0's seven stages; larger ones have more: times their depth, rounded up.
EFFICIENTNET_BLOCKS = (1, 2, 2, 3, 3, 4, 1)
EFFICIENTNET_HEAD = ("features.8", "avgpool", "classifier")
RESNET_NAME = re.compile(r"b(\d+)/(\d+)(?:/relu)?")
EFFICIENTNET_NAME = re.compile(r"block(\d+)([a-z])")


def units(model: str) -> tuple[str, ...]:
    """Return the modules that a stage may begin with, in the order in which they run.

    Raises ``SettingsError`` for unknown models.
    """
    data = model_data(model)
    if data["family"] == "resnet":
        blocks = [f"layer{stage}.{block}" for stage, count in enumerate(data["layers"], 1) for block in range(count)]
        return (*RESNET_STEM, *blocks, *RESNET_HEAD)
    counts = [math.ceil(count * data["depth"]) for count in EFFICIENTNET_BLOCKS]
    blocks = [f"features.{stage}.{block}" for stage, count in enumerate(counts, 1) for block in range(count)]
    return ("features.0", *blocks, *EFFICIENTNET_HEAD)


def page_names(model: str) -> dict[str, str]:
    """Return the module for each of the page's names of layers."""
    if model_data(model)["family"] == "resnet":
        blocks = [unit for unit in units(model) if unit.startswith("layer")]
        return {f"b{unit[5]}/{unit[7:]}/relu": unit for unit in blocks}
    blocks = [unit for unit in units(model) if unit.count(".") == 2]
    return {f"block{unit.split('.')[1]}{chr(ord('a') + int(unit.split('.')[2]))}": unit for unit in blocks}


def stage_starts(settings: BenchSettings) -> tuple[str, ...]:
    """Return the modules that the stages after the first begin with, in order.

    A name of the page ends a stage, so that the next one begins behind it; a module's name begins one.
    Raises ``SettingsError`` for names the model does not have, and for splits that leave a stage empty.
    """
    order = units(settings.model)
    starts = [(order.index(_start(name, settings.model, order)), name) for name in settings.pipeline_splits]
    before, last = 0, "the beginning of the model"
    for place, name in sorted(starts, key=lambda start: start[0]):
        if place == before:
            raise SettingsError(
                f"--pipeline-splits {name}: there is no layer between it and {last}, so a stage would be empty; "
                f"{_other(place, order)}"
            )
        before, last = place, name
    return tuple(order[place] for place, _ in sorted(starts))


def _other(place: int, order: Sequence[str]) -> str:
    return f"the nearest split that works is {order[min(place + 1, len(order) - 1)]}"


def _start(name: str, model: str, order: Sequence[str]) -> str:
    """Return the module that begins the stage after the split ``name``."""
    ends = page_names(model)
    written = f"{name}/relu" if RESNET_NAME.fullmatch(name) and not name.endswith("/relu") else name
    if written in ends:
        return order[order.index(ends[written]) + 1]
    for unit in order:
        if unit == name or unit.startswith(f"{name}."):
            return unit
    inside = next((unit for unit in order if name.startswith(f"{unit}.")), None)
    if inside is not None:
        raise SettingsError(f"--pipeline-splits {name}: stages begin with whole blocks; nearest: {inside}")
    paper = bool(RESNET_NAME.fullmatch(name) or EFFICIENTNET_NAME.fullmatch(name))
    known = list(ends) if paper else [*order, *ends]
    raise SettingsError(f"--pipeline-splits {name}: {model} has no such layer; {nearest(name, known)}")
