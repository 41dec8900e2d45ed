"""The instances of a run: host processes that train one model together and reduce over `torch.distributed`'s gloo.

Errors say what happened to the others. A gloo backend of our own leaves the default process group to the program.
"""

from __future__ import annotations

import atexit
import logging
import os
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore as HashStore
from torch._C._distributed_c10d import PrefixStore as PrefixStore
from torch._C._distributed_c10d import Store as Store
from torch._C._distributed_c10d import TCPStore as TCPStore

from ipu_model.errors import Error

_logger = logging.getLogger("ipu_model.instances.group")

TIMEOUT = timedelta(minutes=30)
# As much as this is reduced at a time: enough for the network's full rate, little beside a model's memory.
_CHUNK = 2**24
# A launcher that sees the true failure ends this process within that time, before it adds an error of its own.
GRACE = 2.0
# How often one who waits looks whether those that are missing have ended.
_LOOK = timedelta(seconds=0.5)

ENDED = "another instance has ended"
_SAME_NUMBER = "all instances must call the model the same number of times"

# Which address of this host the other hosts know; poprun sets it.
HOST_ADDRESS = "POPDIST_HOST_ADDRESS"

Operation = dist.ReduceOp

# A process is in one run only, and meets the others once; programs join from several places.
_joined: list[Group] = []
# Those who leave and join again meet in a new room.
_rooms = count()


class Group:
    """Instances of a run, `members[rank]`, which call all methods in the same order; `Error` if one has ended."""

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
        self._backend: Any = self._attempt("wait for all instances to join", self._connect)

    @property
    def size(self) -> int:
        return len(self.members)

    def sum_(self, tensors: Sequence[Tensor], what: str) -> None:
        """Sum tensors of one element type over the group in place; all members get the same bits. Errors say `what`."""
        if self.size == 1:
            return
        for chunk in _chunks(tensors):
            joined = torch.cat([tensor.reshape(-1) for tensor in chunk])
            self._reduce_(joined, Operation.SUM, f"sum {what}")
            for tensor, summed in zip(chunk, joined.split([tensor.numel() for tensor in chunk])):
                tensor.copy_(summed.view(tensor.shape))

    def reduced(self, tensor: Tensor, operation: dist.ReduceOp.RedOpType, what: str = "values") -> Tensor:
        result = tensor.detach().clone(memory_format=torch.contiguous_format)
        self._reduce_(result, operation, f"reduce {what}")
        return result

    def broadcast(self, tensor: Tensor, root: int, what: str = "values") -> Tensor:
        """Return the tensor of the member with index `root` in the run; shapes and types are the same on all."""
        result = tensor.detach().clone(memory_format=torch.contiguous_format)
        options = dist.BroadcastOptions()
        options.rootRank = self.members.index(root)
        self._attempt(f"broadcast {what}", lambda: self._backend.broadcast([result], options).wait())
        return result

    def gathered(self, tensor: Tensor, what: str = "values") -> list[Tensor]:
        """Return the members' tensors in their order; shapes and types are the same on all."""
        own = tensor.detach().contiguous()
        if self.size == 1:
            return [own.clone()]
        gathered = [torch.empty_like(own) for _ in range(self.size)]
        self._attempt(f"gather {what}", lambda: self._backend.allgather([gathered], [own]).wait())
        return gathered

    def gathered_objects(self, value: Any, what: str = "values") -> list[Any]:
        """Return the members' values, of any type that can be pickled, in their order."""
        data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        sizes = [int(size) for size in self.gathered(torch.tensor([data.numel()]), what)]
        padded = torch.nn.functional.pad(data, (0, max(sizes) - data.numel()))
        return [pickle.loads(part[:size].numpy().tobytes()) for part, size in zip(self.gathered(padded, what), sizes)]

    def barrier(self) -> None:
        self._attempt("wait at a barrier", lambda: self._backend.barrier().wait())

    def only(self, members: Sequence[int]) -> Group:
        """Return the group of these members, of which this process is one; made on first use, then kept."""
        chosen = tuple(sorted(members))
        if chosen not in self._parts:
            store = PrefixStore(f"only/{'/'.join(map(str, chosen))}", self._store)
            rank = chosen.index(self.members[self.rank])
            part = Group(store, chosen, rank, timeout=self._timeout, address=self._address, grace=self._grace)
            self._parts[chosen] = part
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
        """Return gloo's backend; it waits for the others. Without an address gloo asks the machine's name."""
        wait_for_members(self._store, self.members, self.rank, self._timeout)
        gloo = dist.ProcessGroupGloo
        options = gloo._Options()  # type: ignore[attr-defined]
        options._timeout = self._timeout
        device = gloo.create_device(hostname=self._address) if self._address else gloo.create_default_device()
        options._devices = [device]
        return gloo(self._store, self.rank, self.size, options)

    def _reduce_(self, tensor: Tensor, operation: dist.ReduceOp.RedOpType, what: str) -> None:
        options = dist.AllreduceOptions()
        options.reduceOp = Operation(operation)
        self._attempt(what, lambda: self._backend.allreduce([tensor], options).wait())

    def _attempt(self, what: str, action: Callable[[], Any]) -> Any:
        """Do `action` unless this instance is alone; turn gloo's errors into one that says what it waited for."""
        if self.size == 1:
            return None
        if self._broken:
            raise Error(self._broken)
        try:
            return action()
        except RuntimeError as error:
            reason = str(error)
        here = f"Instance {self.members[self.rank]} of {self.size} was about to {what}"
        if "imed out" in reason or "imeout" in reason:
            self._broken = (
                f"{here}, but the others did not come within {self._timeout}: {_SAME_NUMBER}, and each of them "
                f"has to get there. ({reason})"
            )
        else:
            self._broken = (
                f"{here}, but {ENDED}. If it failed, its own output says why; if it came to its end, note that "
                f"{_SAME_NUMBER}. ({reason})"
            )
            _logger.error("%s", self._broken)
            time.sleep(self._grace)
        raise Error(self._broken)


def note_end(store: Store, member: int) -> None:
    _root_of(store).set(_ended(member), "")


def wait_for_members(store: Store, members: Sequence[int], rank: int, timeout: timedelta) -> None:
    """Return when all members are here; `RuntimeError`: one has ended, is late, or the store is gone."""
    here = [f"here/{position}" for position in range(len(members))]
    store.set(here[rank], "")
    deadline = time.monotonic() + timeout.total_seconds()
    while missing := [member for member, key in zip(members, here) if not store.check([key])]:
        ended = [member for member in missing if _root_of(store).check([_ended(member)])]
        if ended:
            raise RuntimeError(f"instance {ended[0]} has ended without joining")
        if time.monotonic() > deadline:
            raise RuntimeError(f"timed out waiting for instance {missing[0]}")
        with suppress(RuntimeError):
            store.wait(here, min(_LOOK, timeout))


def _root_of(store: Store) -> Store:
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store


def _ended(member: int) -> str:
    return f"popdist/ended/{member}"


def _chunks(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    chunk: list[Tensor] = []
    for tensor in tensors:
        if chunk and sum(part.numel() for part in chunk) + tensor.numel() > _CHUNK:
            yield chunk
            chunk = []
        chunk.append(tensor)
    if chunk:
        yield chunk


def world(rank: int, size: int) -> Group:
    """Return the group of all instances, joined on the first call; `Error`: no way to the others, or another index."""
    if not _joined:
        _joined.append(join(rank, size, os.environ))
        atexit.register(leave)
    group = _joined[0]
    if (group.rank, group.size) != (rank, size):
        raise Error(
            f"This process has joined the run as instance {group.rank} of {group.size} and cannot be instance "
            f"{rank} of {size} as well. Give the same numbers to all options of a program."
        )
    return group


def joined() -> Group | None:
    return _joined[0] if _joined else None


def leave() -> None:
    """Leave the group, if this process is in one; the next call of `world` joins anew."""
    atexit.unregister(leave)
    while _joined:
        _joined.pop().close()


def join(rank: int, size: int, environment: Mapping[str, str], timeout: timedelta = TIMEOUT) -> Group:
    """Meet the others at `MASTER_ADDR` and `MASTER_PORT` and return the group of all instances; raises as `world`."""
    if size == 1:
        return Group(HashStore(), [0], 0)
    if not 0 <= rank < size:
        raise Error(f"Instance {rank} of {size}: indices go from 0 to {size - 1}.")
    _check_environment(size, environment)
    where = f"{environment['MASTER_ADDR']}, port {environment['MASTER_PORT']}"
    try:
        # Process 0 runs the store unless a launcher does.
        store, _, _ = next(dist.rendezvous("env://", rank, size, timeout=timeout))  # type: ignore[attr-defined]
    except RuntimeError as error:
        if "EADDRINUSE" in str(error):
            raise Error(
                f"The instances cannot meet at {where}: another program uses this port. Set MASTER_PORT to a free "
                "one, the same for all instances."
            ) from error
        raise Error(
            f"Instance {rank} cannot reach the place where instances meet, {where}: is instance 0 running, and can "
            f"its host be reached by that name from here? ({error})"
        ) from error
    room = PrefixStore(f"popdist/{next(_rooms)}", store)
    return Group(room, range(size), rank, timeout=timeout, address=environment.get(HOST_ADDRESS))


def _check_environment(size: int, environment: Mapping[str, str]) -> None:
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environment.get(name)]
    if missing:
        raise Error(
            f"{size} processes are to train together, but nothing says where they meet: {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not set. Start the program with `poprun --num-instances N "
            "--num-replicas R python program.py` or with torchrun, which set them, or set them to an address and a "
            "free port of process 0's host. poptorch.Options().Distributed.disable() trains in this process alone."
        )
    port = environment["MASTER_PORT"]
    if not port.isdecimal() or not 0 < int(port) < 2**16:
        raise Error(f"MASTER_PORT is {port!r}, which is no port: use a number from 1 to 65535.")
    launched = environment.get("WORLD_SIZE", "")
    if launched.isdecimal() and int(launched) != size:
        raise Error(
            f"The options say that there are {size} processes, the launcher has started {launched} "
            "(WORLD_SIZE): the others would never come. Use the launcher's number in configureProcessId."
        )
