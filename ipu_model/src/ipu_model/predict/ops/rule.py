"""The interface of the rules that cost ops: `OpView` is the input of a rule, `OpWork` its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ipu_model.predict.device import CostSettings, Device, Element, Work
from ipu_model.step import Hints, Op, Ref, Step, Tensor


@dataclass(frozen=True)
class Layout:
    """The layout of a tensor on the tiles: elements on the busiest tile, and the tensor that it was derived from.

    Tensors of the same origin are distributed in the same way, so combining them needs no exchange.
    """

    on_tile: float
    origin: str


@dataclass(frozen=True)
class Operand:
    """A tensor that an op reads, and its layout on the tiles."""

    tensor: Tensor
    layout: Layout

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.tensor.shape

    @property
    def stride(self) -> tuple[int, ...]:
        """Its strides in elements."""
        return self.tensor.stride

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return self.tensor.elements

    @property
    def stored(self) -> int:
        """The number of its elements in memory; an expanded dimension counts once."""
        return self.tensor.stored

    @property
    def element(self) -> Element:
        """The kind of its elements."""
        return Element.of(self.tensor.dtype)

    @property
    def on_tile(self) -> float:
        """Its elements on the busiest tile."""
        return self.layout.on_tile


@dataclass(frozen=True)
class WorkPart:
    """One piece of an op's work, named when there are several."""

    work: Work
    name: str = ""


@dataclass(frozen=True)
class OpWork:
    """The result of a rule: the parts of the work, and the layouts of the op's results (`None` if not a tensor)."""

    parts: tuple[WorkPart, ...]
    layouts: tuple[Layout | None, ...]


@dataclass(frozen=True)
class OpView:
    """An op with its operands and settings, and the layouts, by name, of all tensors made so far."""

    op: Op
    step: Step
    settings: CostSettings
    layouts: Mapping[str, Layout]

    @property
    def kind(self) -> str:
        """The aten op without namespace, overload and the underscore of in-place ops."""
        return self.op.kind

    @property
    def in_place(self) -> bool:
        """Whether the op overwrites its first operand."""
        return self.op.is_in_place

    @property
    def hints(self) -> Hints:
        """The program's settings for the op; planning hints are those of its forward op."""
        return self.op.hints

    @property
    def device(self) -> Device:
        """The device that the op is costed for."""
        return self.settings.device

    @property
    def is_backward(self) -> bool:
        """Whether it belongs to the backward pass."""
        return self.op.is_backward

    @property
    def outputs(self) -> tuple[Tensor | None, ...]:
        """The results of the op; `None` for a result that is not a tensor."""
        return self.op.results

    @property
    def is_empty(self) -> bool:
        """Whether its results have no elements, so that no tile has any work."""
        return not any(output is not None and output.elements for output in self.outputs)

    def output(self, index: int | None = None) -> Tensor:
        """Return output `index`, by default the first one present: gradients may be missing."""
        outputs = self.outputs
        found = next((each for each in outputs if each is not None), None) if index is None else outputs[index]
        assert found is not None, f"{self.op.name} has no output {index or 0}"
        return found

    @property
    def element(self) -> Element:
        """The kind of elements of the first output."""
        return Element.of(self.output().dtype)

    def argument(self, position: int, name: str = "", default: Any = None) -> Any:
        """Return an argument by position or, failing that, by name."""
        return self.op.argument(position, name, default)

    def tensor(self, position: int, name: str = "") -> Operand | None:
        """Return the tensor argument at `position`, or `None` if it is not a tensor."""
        value = self.argument(position, name)
        return self._operand(value) if isinstance(value, Ref) else None

    def needed(self, position: int) -> Operand:
        """Return the tensor argument at `position`, which the op always has."""
        found = self.tensor(position)
        assert found is not None, f"argument {position} of {self.kind} is no tensor"
        return found

    def operands(self) -> Iterator[Operand]:
        """Yield every tensor argument, those inside lists too."""
        for name in self.op.reads:
            found = self._operand(name)
            if found is not None:
                yield found

    def _operand(self, name: Ref) -> Operand | None:
        tensor, layout = self.step.tensors.get(name), self.layouts.get(name)
        return Operand(tensor, layout) if tensor is not None and layout is not None else None

    def spread(self, tensor: Tensor) -> float:
        """Return the elements on the busiest tile of a tensor that is laid out evenly."""
        return even_layout(tensor, self.device).on_tile

    def own_layout(self, on_tile: float | None = None, index: int = 0) -> Layout:
        """Return a new layout that this op chooses: its busiest tile holds at least as much as in an even layout."""
        even = even_layout(self.output(index), self.device)
        return Layout(max(even.on_tile, on_tile or 0.0), even.origin)

    def takes(self, work: Work, layout: Layout | None = None) -> OpWork:
        """Return work with a single part; without `layout`, the first result gets a layout of its own."""
        first = layout
        if first is None and self.outputs[0] is not None:
            first = self.own_layout(work.outputs_on_busiest_tile)
        return OpWork((WorkPart(work),), (first, *self.own_layouts()[1:]))

    def own_layouts(self) -> tuple[Layout | None, ...]:
        """Return an even layout for every result."""
        return tuple(None if each is None else even_layout(each, self.device) for each in self.outputs)

    def nothing(self) -> OpWork:
        """Return no work, and an even layout for every result."""
        return OpWork((), self.own_layouts())


@dataclass(frozen=True)
class Rule:
    """The function that costs the ops of some kinds (`Op.kind`)."""

    kinds: tuple[str, ...]
    cost: Callable[[OpView], OpWork]


def even_layout(tensor: Tensor, device: Device) -> Layout:
    """Return the layout of a tensor that is spread evenly over the tiles."""
    return Layout(float(device.spread(tensor.elements, Element.of(tensor.dtype))), tensor.name)
