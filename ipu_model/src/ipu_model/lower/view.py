"""One node of a captured graph as the rules of lowering see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import torch.fx

from ipu_model.cost.device import Device, Element
from ipu_model.cost.work import Work
from ipu_model.graph import TensorSpec
from ipu_model.lower.result import Layout
from ipu_model.lower.settings import CostSettings
from ipu_model.step import Phase

if TYPE_CHECKING:
    from ipu_model.lower.origins import Origins

Node: TypeAlias = torch.fx.Node


@dataclass(frozen=True)
class Operand:
    """A tensor that an op reads."""

    node: Node
    spec: TensorSpec
    layout: Layout

    @property
    def element(self) -> Element:
        """The kind of its elements."""
        return Element.of(self.spec.dtype)

    @property
    def stored(self) -> int:
        """Its elements in memory: those of an expanded tensor count once."""
        count = 1
        for size, stride in zip(self.spec.shape, self.spec.stride):
            count *= size if stride else min(size, 1)
        return count


@dataclass(frozen=True)
class Part:
    """One piece of an op's work, named when there are several."""

    work: Work
    name: str = ""


@dataclass(frozen=True)
class Result:
    """What a rule says: the work, and how the outputs lie (`None` for an output that is no tensor)."""

    parts: tuple[Part, ...]
    layouts: tuple[Layout | None, ...]


def aten_name(node: Node) -> str:
    """Return the name of the op of `node` without namespace, overload and the underscore of in-place ops."""
    target: object = node.target
    if not hasattr(target, "_schema"):
        # Not remembered: it may be a function of the program, and refer to all of its model.
        return str(getattr(target, "__name__", target))
    return _plain_name(target)


@lru_cache(maxsize=4096)
def _plain_name(target: Any) -> str:
    name = str(target._schema.name).rpartition("::")[2]
    return name if name.endswith("__") else name.removesuffix("_")


@dataclass(frozen=True)
class OpView:
    """A node with its operands and settings, and how the tensors made so far lie on the tiles."""

    node: Node
    settings: CostSettings
    layouts: Mapping[Node, tuple[Layout | None, ...]]
    origins: Origins

    @property
    def name(self) -> str:
        """The aten op without namespace, overload and the underscore of in-place ops."""
        return aten_name(self.node)

    @property
    def in_place(self) -> bool:
        """Whether the op overwrites its first operand."""
        schema = getattr(self.node.target, "_schema", None)
        return schema is not None and bool(schema.is_mutable)

    @property
    def hints(self) -> Mapping[str, Any]:
        """What the program said about the op, or about the forward op that it is the gradient of."""
        return self.origins.hints.get(self.node, {})

    @property
    def device(self) -> Device:
        """What is costed for."""
        return self.settings.device

    @property
    def ipu(self) -> int:
        """The IPU the op is placed on."""
        return int(self.node.meta["placement"].ipu)

    @property
    def is_backward(self) -> bool:
        """Whether it belongs to the backward pass."""
        return bool(self.node.meta["phase"] is Phase.BACKWARD)

    def spec(self, index: int | None = None) -> TensorSpec:
        """Return the description of output `index`, or of the first that there is: gradients may be left out."""
        found = next((spec for spec in self.specs if spec is not None), None) if index is None else self.specs[index]
        assert found is not None, f"{self.node.name} has no output {index or 0}"
        return found

    @property
    def specs(self) -> tuple[TensorSpec | None, ...]:
        """The descriptions of all outputs; `None` where one is no tensor."""
        spec = self.node.meta.get("spec")
        return spec if isinstance(spec, tuple) else (spec,)

    @property
    def element(self) -> Element:
        """The kind of elements of the first output."""
        return Element.of(self.spec().dtype)

    def arg(self, position: int, name: str = "", default: Any = None) -> Any:
        """Return an argument by position or, failing that, by name."""
        if position < len(self.node.args):
            return self.node.args[position]
        return self.node.kwargs.get(name, default)

    def tensor(self, position: int, name: str = "") -> Operand | None:
        """Return the tensor argument at `position`, or `None` if it is no tensor."""
        return self.operand(self.arg(position, name))

    def needed(self, position: int) -> Operand:
        """Return the tensor argument at `position`, which the op always has."""
        found = self.tensor(position)
        assert found is not None, f"argument {position} of {self.name} is no tensor"
        return found

    def operand(self, value: Any) -> Operand | None:
        """Return `value` as an operand if it is a node that holds a tensor."""
        if not isinstance(value, Node) or not isinstance(value.meta.get("spec"), TensorSpec):
            return None
        spec = value.meta["spec"]
        layout = self.layouts[value][0]
        return Operand(value, spec, layout) if layout is not None else None

    def operands(self) -> Iterator[Operand]:
        """Yield every tensor argument, those inside lists too."""
        for node in self.node.all_input_nodes:
            found = self.operand(node)
            if found is not None:
                yield found

    def spread(self, spec: TensorSpec) -> float:
        """Return the elements on the busiest tile of a tensor that is laid out evenly."""
        return float(self.device.spread(spec.elements, Element.of(spec.dtype)))

    def own_layout(self, on_tile: float | None = None, index: int = 0) -> Layout:
        """Return a layout that this op decides on: at least as full as an even one."""
        even = self.spread(self.spec(index))
        return Layout(max(even, on_tile or 0.0), self.node.name if index == 0 else f"{self.node.name}[{index}]")


Rule: TypeAlias = Callable[[OpView], Result]


def result(op: OpView, work: Work, layout: Layout | None = None) -> Result:
    """Return a result of one part; without `layout`, the op decides where its first output lies."""
    first = layout
    if first is None and op.specs[0] is not None:
        first = op.own_layout(work.outputs_on_busiest_tile)
    others = tuple(
        op.own_layout(index=index) if spec is not None else None for index, spec in enumerate(op.specs) if index > 0
    )
    return Result((Part(work),), (first, *others))
