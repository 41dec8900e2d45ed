"""The tensors that take memory on the device: which op made each, and how it lies on tiles."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from ipu_model.memory.spread import Room, Spread
from ipu_model.predict.costs import Costs, OpCost
from ipu_model.predict.device import Element
from ipu_model.step import Op, Source, Step, Tensor

# Second results that the device does not make: the gradient of a maximum compares inputs and outputs again.
_POOLS = ("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d")

# A dropout's mask is drawn again from the same seed in the backward pass (PopART's DropoutGradOp).
_DRAWN_AGAIN = ("bernoulli", "native_dropout")


class Storages:
    """The tensors of one step, each known by the name of the one that its storage was made for.

    `root` maps all tensors to those; `parts` lists what each op costs, in the order in which it runs.
    """

    def __init__(self, step: Step, lowered: Costs, room: Room) -> None:
        self.step, self.room = step, room
        self._layouts = lowered.layouts
        self.parts: dict[str, list[OpCost]] = {}
        for op in lowered.ops:
            self.parts.setdefault(op.node, []).append(op)
        self._spreads: dict[str, Spread] = {}
        self._roots = self._device_roots()

    def root(self, name: str) -> str:
        """Return the tensor that the device keeps the tensor `name` in."""
        return self._roots[name]

    def maker(self, root: str) -> Op | None:
        """Return the op that makes a tensor; `None` for variables, inputs and constants."""
        return self.step.producer(root)

    def ipu(self, root: str) -> int | None:
        """Return the IPU on which a tensor is made; `None` for variables, inputs and constants."""
        maker = self.maker(root)
        return None if maker is None else maker.ipu

    def is_backward(self, name: str) -> bool:
        """Whether a tensor is made in the backward pass."""
        maker = self.maker(name)
        return maker is not None and maker.is_backward

    def _device_roots(self) -> dict[str, str]:
        stand_in: dict[str, str] = {}
        for tensor in self.step.tensors.values():
            if tensor.is_storage:
                stand_in[tensor.name] = self._stand_in(tensor, stand_in)
        return {tensor.name: stand_in[tensor.storage] for tensor in self.step.tensors.values()}

    def _stand_in(self, tensor: Tensor, known: dict[str, str]) -> str:
        """Return the tensor that the device has in place of this one: mostly itself."""
        op = self.maker(tensor.name)
        if op is None:
            return tensor.name
        if op.kind in _POOLS and tensor.index == 1 and self._is_only_for_backward(tensor.name):
            return next((each.name for each in self.step.results_of(op) if each.index == 0), tensor.name)
        operands = self.step.read_by(op)
        if op.name not in self.parts and operands and not op.makes_constant:
            return known[operands[0].storage]  # nothing runs: the same tensor under another name or type
        return tensor.name

    def _is_only_for_backward(self, name: str) -> bool:
        readers = self.step.readers.get(name, ())
        return name not in self.step.returned and all(reader.is_backward for reader in readers)

    @cached_property
    def constants(self) -> list[str]:
        """The tensors that are known when compiling."""
        made = [name for name in self.step.tensors if self._is_constant(name)]
        if not made:
            return []
        written = {self.root(name) for op in self.step.ops for name in op.writes}
        return [
            name
            for name in made
            if name not in written and self.root(name) == name and self.step.tensors[name].producer not in self.parts
        ]

    @cached_property
    def residents(self) -> frozenset[str]:
        """The tensors that stay: variables, the seed, and what is known when compiling."""
        stays = (Source.VARIABLE, Source.SEED)
        return frozenset((*self.constants, *(e.name for e in self.step.storages.values() if e.source in stays)))

    def _is_constant(self, name: str) -> bool:
        maker = self.maker(name)
        return self.step.source(name) is Source.CONSTANT if maker is None else maker.makes_constant

    @cached_property
    def drawn_again(self) -> frozenset[str]:
        """The tensors that are not kept for the backward pass because they can be drawn again."""
        found: set[str] = set()
        for op in self.step.ops:
            if op.kind in _DRAWN_AGAIN:
                mask = 1 if op.kind == "native_dropout" else 0
                found.update(self.root(each.name) for each in self.step.results_of(op) if each.index == mask)
        return frozenset(found)

    def spread(self, root: str) -> Spread:
        """Return how a tensor lies on tiles."""
        if root not in self._spreads:
            self._spreads[root] = self._placed(self.step.tensors[root])
        return self._spreads[root]

    def _placed(self, tensor: Tensor) -> Spread:
        layout, element = self._layouts.get(tensor.name), Element.of(tensor.dtype)
        on_tile = layout.on_tile if layout is not None else self.room.device.spread(tensor.elements, element)
        return self.room.place(tensor.elements, on_tile, element.bytes)

    def made_by(self, op: Op) -> list[str]:
        """Return the tensors that an op makes anew, of those that something looks at."""
        return [each.name for each in self.step.results_of(op) if self.root(each.name) == each.name]

    def read_by(self, op: Op) -> list[str]:
        """Return the tensors that an op reads or changes, each once."""
        return list(dict.fromkeys(self.root(tensor.name) for tensor in self.step.read_by(op)))

    def widest(self, roots: Iterable[str]) -> int:
        """Return over how many tiles the widest of some tensors is spread."""
        return max((self.spread(root).tiles for root in roots), default=1)
