"""Choose one of many candidate plans: the fastest within a limit of temporary memory, or the smallest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ipu_model.cost.candidates import Candidates
from ipu_model.cost.device import Device


@dataclass(frozen=True)
class Plan:
    """One chosen candidate: its cycles, temporary bytes, results on the busiest tile, and splits."""

    method: str
    compute: float
    exchange: float
    phases: int
    temporary: float
    outputs: float
    tiles: int
    parts: tuple[tuple[str, int], ...]

    @property
    def text(self) -> str:
        """The plan in words: its method and the parts of each dimension that is cut."""
        cut = [f"{name} / {count}" for name, count in self.parts if count > 1]
        return f"{self.method}: {', '.join(cut) if cut else 'one tile'}"


def fastest(candidates: Sequence[Candidates], device: Device, limit: float = math.inf) -> Plan | None:
    """Return the candidate of fewest cycles with at most `limit` temporary bytes a tile, or `None`."""
    total = np.concatenate([c.total(device) for c in candidates])
    temporary = np.concatenate([c.temporary for c in candidates])
    allowed = temporary <= limit
    if not allowed.any():
        return None
    return _pick(candidates, int(np.argmin(np.where(allowed, total, np.inf))))


def smallest(candidates: Sequence[Candidates], device: Device) -> Plan:
    """Return the candidate with the least temporary memory; the fastest of several."""
    total = np.concatenate([c.total(device) for c in candidates])
    temporary = np.concatenate([c.temporary for c in candidates])
    return _pick(candidates, int(np.lexsort((total, temporary))[0]))


def _pick(candidates: Sequence[Candidates], index: int) -> Plan:
    for found in candidates:
        if index < len(found.compute):
            break
        index -= len(found.compute)
    split = found.split
    parts = {
        "field": int(split.field[index]), "in": int(split.ins[index]), "out": int(split.outs[index]),
        "groups": int(split.groups[index]),
    }  # fmt: skip
    return Plan(
        method=split.method, compute=float(found.compute[index]), exchange=float(found.exchange[index]),
        phases=int(found.phases[index]), temporary=float(found.temporary[index]),
        outputs=float(found.outputs[index]),
        tiles=int(np.prod(list(parts.values()))), parts=tuple(parts.items()),
    )  # fmt: skip
