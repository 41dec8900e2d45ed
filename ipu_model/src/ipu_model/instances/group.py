"""Collectives of the instances of a run, with errors that say what happened to the others.

A launcher may note instances that have ended, so that nobody waits for them to join.
"""

from __future__ import annotations

import atexit
import logging
import pickle
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from ipu_model.errors import Error
from ipu_model.instances import gloo
from ipu_model.instances.gloo import PrefixStore, Store, root_of

_T = TypeVar("_T")
_logger = logging.getLogger(__name__)

TIMEOUT = timedelta(minutes=30)
# As much as this is reduced at a time: enough for the network's full rate, little beside a model's memory.
_CHUNK = 2**24
# A launcher that sees the true failure ends this process within that time, before it adds an error of its own.
GRACE = 2.0
# How often one who waits looks whether those that are missing have ended.
_LOOK = timedelta(seconds=0.5)

ENDED = "another instance has ended"
_SAME_NUMBER = "all instances must call the model the same number of times"


class Operation(Enum):
    """How values of the instances become one."""

    SUM = "SUM"
    MIN = "MIN"
    MAX = "MAX"


class Group:
    """Some or all instances of a run; `members[rank]` is the index in the run of the group's process `rank`.

    Every method is called by all members, in the same order. Raises `Error` if one has ended or does not come.
    """

    def __init__(
        self,
        store: Store,
        members: Sequence[int],
        rank: int,
        *,
        timeout: timedelta = TIMEOUT,
        address: str | None = None,
        grace: float = GRACE,
    ) -> None:
        self.members, self.rank = tuple(members), rank
        self._store, self._timeout, self._address, self._grace = store, timeout, address, grace
        self._parts: dict[tuple[int, ...], Group] = {}
        self._broken = ""
        self._backend: Any = None
        if self.size > 1:
            self._backend = self._attempt("wait for all instances to join", self._connect)
            _connected.add(self)

    @property
    def size(self) -> int:
        """How many instances there are in this group."""
        return len(self.members)

    def sum_(self, tensors: Sequence[Tensor], what: str) -> None:
        """Sum tensors of one element type over the group in place; all members get the same bits.

        `what` describes the values in errors.
        """
        if self.size == 1:
            return
        for chunk in _chunks(tensors):
            joined = torch.cat([tensor.reshape(-1) for tensor in chunk])
            self._attempt(f"sum {what}", partial(gloo.reduce_, self._backend, joined, "SUM"))
            for tensor, summed in zip(chunk, joined.split([tensor.numel() for tensor in chunk])):
                tensor.copy_(summed.view(tensor.shape))

    def reduced(self, tensor: Tensor, operation: Operation, what: str = "values") -> Tensor:
        """Return the sum, smallest or largest of the members' tensors, element by element."""
        result = tensor.detach().clone(memory_format=torch.contiguous_format)
        if self.size > 1:
            self._attempt(f"reduce {what}", lambda: gloo.reduce_(self._backend, result, operation.value))
        return result

    def broadcast(self, tensor: Tensor, root: int, what: str = "values") -> Tensor:
        """Return the tensor of the member with index `root` in the run; shapes and types are the same on all."""
        result = tensor.detach().clone(memory_format=torch.contiguous_format)
        if self.size > 1:
            position = self.members.index(root)
            self._attempt(f"broadcast {what}", lambda: gloo.broadcast_(self._backend, result, position))
        return result

    def gathered(self, tensor: Tensor, what: str = "values") -> list[Tensor]:
        """Return the members' tensors in their order; shapes and types are the same on all."""
        own = tensor.detach().contiguous()
        if self.size == 1:
            return [own.clone()]
        return self._attempt(f"gather {what}", lambda: gloo.gather(self._backend, own))

    def gathered_objects(self, value: Any, what: str = "values") -> list[Any]:
        """Return the members' values, of any type that can be pickled, in their order."""
        data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        sizes = [int(size) for size in self.gathered(torch.tensor([data.numel()]), what)]
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: data.numel()] = data
        parts = self.gathered(padded, what)
        return [pickle.loads(part[:size].numpy().tobytes()) for part, size in zip(parts, sizes)]

    def barrier(self) -> None:
        """Return when all members have called this."""
        if self.size > 1:
            self._attempt("wait at a barrier", lambda: gloo.wait_for_all(self._backend))

    def only(self, members: Sequence[int]) -> Group:
        """Return the group of these members, of which this process is one; made on first use, then kept."""
        chosen = tuple(sorted(members))
        if chosen not in self._parts:
            self._parts[chosen] = Group(
                PrefixStore(f"only/{'/'.join(map(str, chosen))}", self._store),
                chosen,
                chosen.index(self.members[self.rank]),
                timeout=self._timeout,
                address=self._address,
                grace=self._grace,
            )
        return self._parts[chosen]

    def close(self) -> None:
        """Leave the others. Gloo's threads end here: at the interpreter's own end they could abort the process."""
        for part in self._parts.values():
            part.close()
        self._backend = None
        self._broken = self._broken or (
            f"Instance {self.members[self.rank]} has left the others (popdist.finalizeBackend): a model can train "
            "again after popdist.initializeBackend and another compilation."
        )

    def _connect(self) -> Any:
        wait_for_members(self._store, self.members, self.rank, self._timeout)
        return gloo.connect(self._store, self.rank, self.size, self._timeout, self._address)

    def _attempt(self, what: str, action: Callable[[], _T]) -> _T:
        """Do `action`; turn gloo's errors into one that says what this instance waited for."""
        if self._broken:
            raise Error(self._broken)
        try:
            return action()
        except RuntimeError as error:
            self._broken = self._explanation(what, str(error))
        if ENDED in self._broken:
            _logger.error("%s", self._broken)
            time.sleep(self._grace)
        raise Error(self._broken)

    def _explanation(self, what: str, reason: str) -> str:
        here = f"Instance {self.members[self.rank]} of {self.size} was about to {what}"
        if "imed out" in reason or "imeout" in reason:
            return (
                f"{here}, but the others did not come within {self._timeout}: {_SAME_NUMBER}, and each of them "
                f"has to get there. ({reason})"
            )
        return (
            f"{here}, but {ENDED}. If it failed, its own output says why; if it came to its end, note that "
            f"{_SAME_NUMBER}. ({reason})"
        )


def note_end(store: Store, member: int) -> None:
    """Note that instance `member` of the run has ended, for those who wait for it."""
    root_of(store).set(_ended(member), "")


def wait_for_members(store: Store, members: Sequence[int], rank: int, timeout: timedelta) -> None:
    """Say that `members[rank]` is here, and return when all of them are.

    Raises:
        RuntimeError: one has ended and will not come, they did not come within `timeout`, or the store is gone.
    """
    store.set(_here(rank), "")
    deadline = time.monotonic() + timeout.total_seconds()
    while missing := [member for position, member in enumerate(members) if not store.check([_here(position)])]:
        ended = [member for member in missing if root_of(store).check([_ended(member)])]
        if ended:
            raise RuntimeError(f"instance {ended[0]} has ended without joining")
        if time.monotonic() > deadline:
            raise RuntimeError(f"timed out waiting for instance {missing[0]}")
        with suppress(RuntimeError):
            store.wait([_here(position) for position in range(len(members))], min(_LOOK, timeout))


def _here(position: int) -> str:
    return f"here/{position}"


def _ended(member: int) -> str:
    return f"popdist/ended/{member}"


def _chunks(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield the tensors in order, together up to a limited number of elements."""
    chunk: list[Tensor] = []
    for tensor in tensors:
        if chunk and sum(part.numel() for part in chunk) + tensor.numel() > _CHUNK:
            yield chunk
            chunk = []
        chunk.append(tensor)
    if chunk:
        yield chunk


_connected: weakref.WeakSet[Group] = weakref.WeakSet()


@atexit.register
def _disconnect() -> None:
    """End gloo's threads: one that still gives up a tensor while the interpreter ends would crash the process."""
    for group in list(_connected):
        group._backend = None
