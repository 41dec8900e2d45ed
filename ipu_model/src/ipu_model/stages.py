"""The stages of a program: stretches of the forward pass on one IPU each, with the backward ops that belong to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch.fx

from ipu_model.graph import Graph
from ipu_model.step import Phase, Placement


@dataclass(frozen=True)
class Stage:
    """One stage: its number from 0 along the data flow, and its IPU."""

    index: int
    ipu: int


@dataclass(frozen=True)
class Stages:
    """All stages of a graph in order; blocks that follow one another on one IPU are one stage."""

    stages: tuple[Stage, ...]
    _index_of: dict[tuple[int, int], int] = field(repr=False)

    def __len__(self) -> int:
        return len(self.stages)

    def __iter__(self) -> Iterator[Stage]:
        return iter(self.stages)

    @property
    def last(self) -> int:
        """The number of the last stage."""
        return len(self.stages) - 1

    def of(self, placement: Placement) -> int:
        """Return the number of the stage that an op with this placement belongs to."""
        return self._index_of[_key(placement)]

    def of_node(self, node: torch.fx.Node) -> int | None:
        """Return the number of the stage of an op; `None` for placeholders and constants."""
        placement = node.meta.get("placement")
        return None if placement is None else self.of(placement)


def stages_of(graph: Graph) -> Stages:
    """Return the stages of a graph, by the stage numbers and IPUs that its ops were placed on."""
    keys: dict[tuple[int, int], None] = {}
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        for node in graph.ops.nodes:
            if "placement" in node.meta and node.meta["phase"] is phase:
                keys.setdefault(_key(node.meta["placement"]))
    stages: list[Stage] = []
    index_of: dict[tuple[int, int], int] = {}
    for key in sorted(keys, key=lambda found: found[0]):  # a stable sort: equal numbers stay in order of appearance
        if not stages or stages[-1].ipu != key[1]:
            stages.append(Stage(len(stages), key[1]))
        index_of[key] = len(stages) - 1
    return Stages(tuple(stages) or (Stage(0, 0),), index_of)


def _key(placement: Placement) -> tuple[int, int]:
    return placement.stage, placement.ipu
