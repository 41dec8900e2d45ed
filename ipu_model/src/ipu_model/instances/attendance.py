"""Who has come to where instances meet, and who never will: a launcher may note those that have ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

from ipu_model.instances.gloo import Store, root_of

# How often one who waits looks whether those that are missing have ended.
_LOOK = timedelta(seconds=0.5)


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
