"""The interface of the rules that cost ops: `OpView` is the input of a rule, `OpWork` its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ipu_model.errors import Error
from ipu_model.predict.device import CostSettings, Device, Element, Work, check_proportion
from ipu_model.predict.program import forget_everything
from ipu_model.step import Op, Ref, Step, Tensor


@dataclass(frozen=True)
class Layout:
    """The layout of a tensor on the tiles: elements on the busiest tile, and the tensor that it was derived from.

    Tensors of the same origin are distributed in the same way, so combining them needs no exchange.
    """

    on_tile: float
    origin: str


class Operand:
    """A tensor that an op reads, and its layout on the tiles."""

    def __init__(self, tensor: Tensor, layout: Layout) -> None:
        self.tensor, self.layout, self.on_tile = tensor, layout, layout.on_tile
        self.shape, self.elements, self.stored = tensor.shape, tensor.elements, tensor.stored
        self.element = Element.of(tensor.dtype)


@dataclass(frozen=True)
class OpWork:
    """The result of a rule: the parts of the work by name ("" for the op itself), and the layouts of its results."""

    parts: Mapping[str, Work]
    layouts: tuple[Layout | None, ...]


class OpView:
    """An op with its operands and settings, and the layouts, by name, of all tensors made so far."""

    def __init__(self, op: Op, step: Step, settings: CostSettings, layouts: Mapping[str, Layout]) -> None:
        self.op, self.step, self.settings, self.layouts = op, step, settings, layouts
        self.kind, self.is_backward, self.outputs = op.kind, op.is_backward, op.results
        self.device = settings.device

    def output(self, index: int | None = None) -> Tensor:
        """Return output `index`, by default the first one present: gradients may be missing."""
        present = (output for output in self.outputs if output is not None)
        output = next(present, None) if index is None else self.outputs[index]
        assert output is not None, f"{self.op.name} has no output {index or 0}"
        return output

    @property
    def element(self) -> Element:
        return Element.of(self.output().dtype)

    @property
    def proportion(self) -> float:
        """The share of a tile for temporary data: that of the op's own hints, else that of the program."""
        own, together = self.op.hints.available_memory_proportion, self.op.hints.multi_convolution
        if own is None and together is not None:
            own = together.available_memory_proportion
        if own is None:
            return self.settings.proportion(self.op.ipu)
        check_proportion(own, f"the op {self.op.name}")
        return own

    def argument(self, position: int, name: str = "", default: Any = None) -> Any:
        return self.op.argument(position, name, default)

    def tensor(self, position: int) -> Operand | None:
        value = self.argument(position)
        return self._operand(value) if isinstance(value, Ref) else None

    def needed(self, position: int) -> Operand:
        operand = self.tensor(position)
        assert operand is not None, f"argument {position} of {self.kind} is no tensor"
        return operand

    def operands(self) -> Iterator[Operand]:
        return (operand for operand in map(self._operand, self.op.reads) if operand is not None)

    def _operand(self, name: Ref) -> Operand | None:
        tensor, layout = self.step.tensors.get(name), self.layouts.get(name)
        return Operand(tensor, layout) if tensor is not None and layout is not None else None

    def spread(self, tensor: Tensor) -> float:
        return even_layout(tensor, self.device).on_tile

    def own_layout(self, on_tile: float | None = None, index: int = 0) -> Layout:
        """Return a new layout that this op chooses: its busiest tile holds at least as much as in an even layout."""
        even = even_layout(self.output(index), self.device)
        return Layout(max(even.on_tile, on_tile or 0.0), even.origin)

    def own_layouts(self) -> tuple[Layout | None, ...]:
        return tuple(None if output is None else even_layout(output, self.device) for output in self.outputs)

    def takes(self, work: Work, layout: Layout | None = None) -> OpWork:
        """Return work with a single part; without `layout`, the first result gets a layout of its own."""
        if layout is None and self.outputs[0] is not None:
            layout = self.own_layout(work.outputs_on_busiest_tile)
        return OpWork({"": work}, (layout, *self.own_layouts()[1:]))


Cost: TypeAlias = Callable[[OpView], OpWork]


@dataclass(frozen=True)
class Rule:
    """The function that costs ops of some kinds, and what profiles call these ops and their further results."""

    kinds: tuple[str, ...]
    cost: Cost
    words: Mapping[str, str] = field(default_factory=dict)
    further_results: tuple[str, ...] = ()


_rules: dict[str, Rule] = {}


def register(rule: Rule) -> None:
    """Use `rule` for the kinds of ops that it names, none of which may have one; this clears all modelled results."""
    taken = [kind for kind in rule.kinds if kind in _rules]
    if taken:
        raise Error(f"Ops called {', '.join(taken)} are costed by another rule already: register other names.")
    _rules.update(dict.fromkeys(rule.kinds, rule))
    forget_everything()


def rule_of(kind: str) -> Rule | None:
    return _rules.get(kind)


def costs(
    *names: str, words: str | Mapping[str, str] = "", further_results: tuple[str, ...] = ()
) -> Callable[[Cost], Cost]:
    """Make a function the rule for some kinds of ops: each text names one or more; `words` may be one name for all."""
    named = tuple(kind for text in names for kind in text.split())

    def add(cost: Cost) -> Cost:
        by_kind = dict.fromkeys(named, words) if isinstance(words, str) else words
        register(Rule(named, cost, by_kind, further_results))
        return cost

    return add


def even_layout(tensor: Tensor, device: Device) -> Layout:
    return Layout(float(device.spread(tensor.elements, Element.of(tensor.dtype))), tensor.name)
