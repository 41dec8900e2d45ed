"""From when until when each tensor of a micro-batch is in memory, on every IPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ipu_model.memory import categories
from ipu_model.memory.schedule import FORWARD, RECOMPUTE, Schedule, Step
from ipu_model.memory.spread import Spread
from ipu_model.memory.stash import Stash
from ipu_model.memory.storage import Storages
from ipu_model.recompute import Kept
from ipu_model.step import Source


@dataclass(frozen=True)
class Live:
    """Something in memory from step `first` to step `last` of an IPU, both included."""

    place: Spread
    first: int
    last: int
    category: str


@dataclass(frozen=True)
class _Instance:
    """A tensor of the forward pass (`again` false), or what the backward pass has of it."""

    root: str
    again: bool


@dataclass
class _Lifetime:
    first: int
    last: int

    def until(self, step: int) -> None:
        self.last = max(self.last, step)


class IpuLifetimes:
    """The lifetimes on one IPU.

    In a pipeline, a stage but the last runs the backward pass of an older micro-batch than the forward pass
    before it: what the backward pass reads comes out of a stash, and only the stash lasts from one to the
    other. Tensors that go to another IPU wait for the copy at the end of the cycle, those that come from one
    are there from the start of a cycle. `elsewhere` are variables that live on other IPUs.
    """

    def __init__(
        self, ipu: int, schedule: Schedule, storages: Storages, kept: Kept, stash: Stash, elsewhere: frozenset[str]
    ) -> None:
        self._ipu, self._schedule, self._storages, self._kept, self._stash = ipu, schedule, storages, kept, stash
        self._elsewhere = elsewhere
        self._found: dict[_Instance, _Lifetime] = {}
        self.stashed: dict[str, int] = {}
        for number, step in enumerate(schedule.steps):
            for root in step.makes:
                self._extend(_Instance(root, step.phase == RECOMPUTE or storages.is_backward(root)), number, number)
            for root in step.reads:
                if not self._is_resident(root):
                    self._read(root, step, number)
        if stash.pipelined:
            self._wait_for_copies()
        for name in stash.returned:
            self._hold(_Instance(storages.root(name), storages.is_backward(name)))

    def lives(self) -> list[Live]:
        """Return everything that lives for a part of the time: tensors, stashes, temporary data."""
        spread = self._storages.spread
        found = [
            Live(spread(instance.root), life.first, life.last, self._category(instance))
            for instance, life in self._found.items()
        ]
        end = self._schedule.cycle_end
        found += [
            Live(spread(root).times(slots), 0, end, categories.STASHES)
            for root, slots in self.stashed.items()
            if not self._stash.is_off_chip(root)
        ]
        for number, step in enumerate(self._schedule.steps):
            if step.temporary.on_tile:
                found.append(Live(step.temporary, number, number, categories.TEMPORARIES))
        return found

    @property
    def inputs(self) -> list[Spread]:
        """The tensors that the host streams to this IPU."""
        own = [i.root for i in self._found if self._is_input(i.root) and not i.again]
        return [self._storages.spread(root) for root in own]

    @property
    def outputs(self) -> list[Spread]:
        """The tensors that the host streams from this IPU."""
        roots = dict.fromkeys(self._storages.root(name) for name in self._stash.returned)
        return [self._storages.spread(root) for root in roots if self._storages.ipu(root) == self._ipu]

    @property
    def off_chip_bytes(self) -> float:
        """Bytes of stashes in streaming memory."""
        spread = self._storages.spread
        return sum(spread(root).total * n for root, n in self.stashed.items() if self._stash.is_off_chip(root))

    def _read(self, root: str, step: Step, number: int) -> None:
        is_backward = self._storages.is_backward(root)
        if step.phase == FORWARD or is_backward or root in self._elsewhere:
            self._extend(_Instance(root, is_backward), self._arrival(root, number), number)
        elif self._runs_again(root, step.stage) or root in self._storages.drawn_again:
            self._extend(_Instance(root, True), number, number)
        elif slots := self._stash.slots(step.stage):
            self.stashed[root] = max(slots, self.stashed.get(root, 0))
            self._extend(_Instance(root, True), self._backward_start, number)
            self._keep_for_stash(root)
        else:
            self._extend(_Instance(root, False), self._arrival(root, number), number)

    def _extend(self, instance: _Instance, first: int, last: int) -> None:
        life = self._found.get(instance)
        if life is None:
            self._found[instance] = _Lifetime(first, last)
        else:
            life.until(last)

    def _arrival(self, root: str, number: int) -> int:
        """Return when a tensor that this IPU did not make gets there."""
        comes_early = self._stash.pipelined or self._is_input(root)
        return 0 if comes_early and number <= self._schedule.cycle_end else number

    def _keep_for_stash(self, root: str) -> None:
        """Keep the tensor of the newer micro-batch until the end of its forward pass, when it is stashed."""
        end = max(0, self._backward_start - 1)
        instance = _Instance(root, False)
        if instance not in self._found:
            self._found[instance] = _Lifetime(0, end)
        self._found[instance].until(end)

    def _wait_for_copies(self) -> None:
        for instance in self._found:
            root = instance.root
            if self._stash.leaves(root, self._ipu) and instance.again == self._storages.is_backward(root):
                self._hold(instance)

    def _hold(self, instance: _Instance) -> None:
        """Keep a tensor until the end of the cycle."""
        if instance in self._found and self._storages.ipu(instance.root) == self._ipu:
            self._found[instance].until(self._schedule.cycle_end)

    @cached_property
    def _backward_start(self) -> int:
        return self._schedule.backward_start

    def _runs_again(self, root: str, stage: int) -> bool:
        maker = self._storages.maker(root)
        return maker is not None and maker.name in self._kept.again and maker.stage == stage

    def _is_resident(self, root: str) -> bool:
        return root in self._storages.residents and root not in self._elsewhere

    def _is_input(self, root: str) -> bool:
        return self._storages.step.source(root) is Source.INPUT

    def _category(self, instance: _Instance) -> str:
        if self._is_input(instance.root) and not instance.again:
            return categories.STREAMS
        return categories.GRADIENTS if self._storages.is_backward(instance.root) else categories.ACTIVATIONS
