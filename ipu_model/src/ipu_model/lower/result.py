"""What lowering a graph gives: the cost of every op, and of every trainable tensor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ipu_model.cost.work import Cycles, Work, total
from ipu_model.step import Phase


@dataclass(frozen=True)
class OpCost:
    """The cost of one op of a step, or of one of the parts it has on the device.

    `node` names the op, `part` which of its parts it is ("data gradient", "bias"; "" for the op itself), `target`
    the aten op, `family` the kind of work, `stage` and `ipu` where it runs. `is_fallback` tells that there is no
    formula and the cost is that of reading every input from other tiles and writing every output with plain
    code.
    """

    node: str
    target: str
    part: str
    phase: Phase
    stage: int
    ipu: int
    scope: str
    work: Work
    is_fallback: bool = False

    @property
    def family(self) -> str:
        """The family of formulas that costed it."""
        return self.work.family


@dataclass(frozen=True)
class VariableCost:
    """The cost of one trainable tensor on the IPU where it is first used, for one execution."""

    variable: str
    ipu: int
    elements: int
    work: Work


@dataclass(frozen=True)
class Layout:
    """How a tensor lies on the tiles: elements on the busiest one, and the tensor that decided on it.

    Tensors of one origin lie in the same places, so that combining them needs no exchange.
    """

    on_tile: float
    origin: str


@dataclass(frozen=True)
class Lowered:
    """The costs of one micro-batch; views and compile-time constants are left out, they cost nothing.

    `layouts` maps names of tensors to how they lie on tiles.
    """

    ops: tuple[OpCost, ...]
    layouts: Mapping[str, Layout]

    @property
    def fallbacks(self) -> tuple[OpCost, ...]:
        """The ops that were costed without a formula."""
        return tuple(op for op in self.ops if op.is_fallback)

    def of(self, *, ipu: int | None = None, phase: Phase | None = None) -> tuple[OpCost, ...]:
        """Return the ops on one IPU and of one phase (`None`: all)."""
        return tuple(op for op in self.ops if (ipu is None or op.ipu == ipu) and (phase is None or op.phase is phase))

    def cycles(self, *, ipu: int | None = None, phase: Phase | None = None) -> Cycles:
        """Return the summed cycles of the ops on one IPU and of one phase."""
        return total_of(self.of(ipu=ipu, phase=phase))

    @property
    def flops(self) -> int:
        """Multiplications and additions of all contractions."""
        return sum(op.work.flops for op in self.ops)


def total_of(costs: Iterable[OpCost | VariableCost]) -> Cycles:
    """Return the summed cycles of `costs`."""
    return total(cost.work for cost in costs)
