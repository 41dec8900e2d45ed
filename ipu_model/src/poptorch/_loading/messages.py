"""What an accessor and its process say to each other.

A *generation* is a run through the data that starts at item 0 of a new iterator; within one, passes are
numbered from 0. Slots are numbers of places in the ring.
"""

from __future__ import annotations

import pickle
from multiprocessing.connection import Connection
from typing import NamedTuple, cast

from poptorch._loading.ring import RingLayout
from poptorch._loading.structure import ItemStructure


class Ready(NamedTuple):
    """From the child: the first item is loaded and looks like this."""

    structure: ItemStructure
    layout: RingLayout


class ItemStored(NamedTuple):
    """From the child: the slot holds the next item, with this many rows if not a full slot's."""

    generation: int
    slot: int
    rows: int | None


class PassEnded(NamedTuple):
    """From the child: the iterator is exhausted."""

    generation: int


class Failed(NamedTuple):
    """From the child, its last words: why it ends."""

    reason: str


class Begin(NamedTuple):
    """From the parent: deliver this pass now.

    A new generation throws away everything stored, except for the slot that the program still looks at.
    """

    generation: int
    pass_number: int
    held_slot: int | None


class Release(NamedTuple):
    """From the parent: the slot may be written again."""

    slot: int


class Stop(NamedTuple):
    """From the parent: end."""


ToParent = Ready | ItemStored | PassEnded | Failed
ToChild = Begin | Release | Stop


def send(connection: Connection, message: ToParent | ToChild) -> None:
    """Send one message; raise `OSError` if nobody listens any more."""
    # Connection.send() would move the tensors of a pattern item into shared memory of their own.
    connection.send_bytes(pickle.dumps(message))


def receive_from_child(connection: Connection) -> ToParent:
    """Wait for the child's next message; raise `EOFError` or `OSError` if it is gone."""
    return cast(ToParent, pickle.loads(connection.recv_bytes()))


def receive_from_parent(connection: Connection) -> ToChild:
    """Wait for the parent's next message; raise `EOFError` or `OSError` if it is gone."""
    return cast(ToChild, pickle.loads(connection.recv_bytes()))
