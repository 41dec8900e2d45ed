"""How a process finds the other instances of its run: what launchers put into the environment."""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from datetime import timedelta
from itertools import count

from ipu_model.errors import Error
from ipu_model.instances import gloo
from ipu_model.instances.gloo import HashStore, PrefixStore
from ipu_model.instances.group import TIMEOUT, Group

# Which address of this host the other hosts know; poprun sets it.
HOST_ADDRESS = "POPDIST_HOST_ADDRESS"
_MEETING_PLACE = ("MASTER_ADDR", "MASTER_PORT")
_REMEDY = (
    "Start the program with `poprun --num-instances N --num-replicas R python program.py` or with torchrun, "
    "which set them"
)

# A process is in one run only, and meets the others once; programs join from several places.
_joined: list[Group] = []
# Those who leave and join again meet in a new room.
_rooms = count()


def world(rank: int, size: int) -> Group:
    """Return the group of all instances, joining it as `rank` of `size` on the first call.

    Raises:
        Error: the environment does not say where the others are, they cannot be reached, or this process has
            joined under another index.
    """
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
    """Return the group of all instances if this process has joined it."""
    return _joined[0] if _joined else None


def leave() -> None:
    """Leave the group, if this process is in one; the next call of `world` joins anew."""
    atexit.unregister(leave)
    while _joined:
        _joined.pop().close()


def join(rank: int, size: int, environment: Mapping[str, str], timeout: timedelta = TIMEOUT) -> Group:
    """Meet the other instances at `MASTER_ADDR` and `MASTER_PORT` and return the group of all of them.

    Raises:
        Error: as `world`.
    """
    if size == 1:
        return Group(HashStore(), [0], 0)
    if not 0 <= rank < size:
        raise Error(f"Instance {rank} of {size}: indices go from 0 to {size - 1}.")
    _check(size, environment)
    where = f"{environment['MASTER_ADDR']}, port {environment['MASTER_PORT']}"
    try:
        store = gloo.store_from_environment(rank, size, timeout)
    except RuntimeError as error:
        raise _unreachable(rank, where, str(error)) from error
    room = PrefixStore(f"popdist/{next(_rooms)}", store)
    return Group(room, range(size), rank, timeout=timeout, address=environment.get(HOST_ADDRESS))


def _check(size: int, environment: Mapping[str, str]) -> None:
    missing = [name for name in _MEETING_PLACE if not environment.get(name)]
    if missing:
        raise Error(
            f"{size} processes are to train together, but nothing says where they meet: {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not set. {_REMEDY}, or set them to an address and a free port of "
            "process 0's host. poptorch.Options().Distributed.disable() trains in this process alone."
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


def _unreachable(rank: int, where: str, reason: str) -> Error:
    if "EADDRINUSE" in reason:
        return Error(
            f"The instances cannot meet at {where}: another program uses this port. Set MASTER_PORT to a free "
            "one, the same for all instances."
        )
    return Error(
        f"Instance {rank} cannot reach the place where instances meet, {where}: is instance 0 running, and can its "
        f"host be reached by that name from here? ({reason})"
    )
