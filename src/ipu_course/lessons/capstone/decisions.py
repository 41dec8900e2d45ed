"""The decisions of a learner's plan in words, and what a plan changed since the one before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping, Sequence

import torch

from ipu_course.lessons.capstone.plans import IPUS
from ipu_course.lessons.capstone.prices import DECISIONS, in_words

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule

DEFAULT_PROPORTION = 0.6
PRECISION, PARTIALS = "precision", "partials"
TYPES = {torch.float16: "half", torch.float32: "float32"}


def decisions_of(module: ModelledModule, types: Sequence[torch.dtype], micro_batch: int) -> dict[str, str]:
    """Return the decisions of a captured plan by their names, in words; ``types`` are those of the weights.

    A layer that is cut in two counts for the IPU on which it begins.
    """
    ipus = module.ipus_of_modules
    layers = [ipu for name, ipu in ipus.items() if name.startswith("layers.") and name.count(".") == 1]
    kinds = dict.fromkeys(TYPES.get(each, str(each)) for each in types)
    return {
        PRECISION: " and ".join(kinds),
        PARTIALS: "half" if module.half_partials else "float32",
        DECISIONS["layers"]: in_words("layers", [layers.count(ipu) for ipu in range(IPUS)]),
        DECISIONS["head"]: in_words("head", ipus["head"]) if "head" in ipus else "another module",
        DECISIONS["micro_batch"]: in_words("micro_batch", micro_batch),
        DECISIONS["every_layer"]: _checkpoints(module.checkpoints, len(layers)),
        DECISIONS["state_on_chip"]: in_words("state_on_chip", module.has_state_on_chip),
        DECISIONS["proportion"]: _proportions(module.memory_proportions),
    }


def _checkpoints(marked: int, layers: int) -> str:
    if marked in (0, layers):
        return in_words("every_layer", bool(marked))
    return f"{marked} outputs"


def _proportions(given: Mapping[int, float | None]) -> str:
    found = [DEFAULT_PROPORTION if given.get(ipu) is None else given[ipu] for ipu in range(IPUS)]
    return ", ".join(f"{each:g}" for each in (found[:1] if len(set(found)) == 1 else found))


def changed_in_words(before: Mapping[str, str] | None, now: Mapping[str, str]) -> str:
    """Return which decisions differ from those of the plan before, or all decisions of a first plan."""
    if before is None:
        return "; ".join(f"{name}: {value}" for name, value in now.items())
    changed = [f"{name}: {before[name]} -> {value}" for name, value in now.items() if before[name] != value]
    return "; ".join(changed) or "none of these decisions"
