"""How far a row depends on its program's cut into stages, where the cut is not published: other cuts, modelled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from ipu_model.predict import samples_per_second
from ipu_model.validate import programs
from ipu_model.validate.predictions import Built
from ipu_model.validate.rows import Row


@dataclass(frozen=True)
class OtherCut:
    """The program of a row with another cut, in words, and the value that is modelled for it."""

    row: Row
    cut: str
    modelled: float

    @property
    def error(self) -> float:
        """The signed relative error that the row would have with this cut."""
        return self.modelled / self.row.value - 1.0


# Cuts besides that of the row's own program. Stages of EfficientNet count as in torchvision's `features`.
_CUTS: Mapping[str, Mapping[str, Built]] = {
    "blind.B13": {
        "2, 4, 4 and 2 layers instead of 3, 3, 3 and 3": partial(programs.vit_program, (2, 4, 4, 2)),
        "4, 4, 2 and 2 layers": partial(programs.vit_program, (4, 4, 2, 2)),
    },
    "blind.B15": {
        "the second IPU begins at stage 3 of the network instead of 4": partial(programs.efficientnet_program, 3),
        "it begins at stage 5": partial(programs.efficientnet_program, 5),
    },
}


def other_cuts(row: Row) -> Iterator[OtherCut]:
    """Yield what is modelled for the other cuts of a row's program; nothing if its cut is published."""
    for cut, program in _CUTS.get(row.id, {}).items():
        yield OtherCut(row, cut, samples_per_second(program()))
