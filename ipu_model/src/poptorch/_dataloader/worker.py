"""The loader's process: iterates over the data set and fills the ring as far ahead as allowed.

A *generation* is a run through the data that starts at item 0 of a new iterator; within one, passes are numbered from
0. Slots are numbers of places in the ring.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import re
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import dropwhile
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import numpy as np
import torch

from ipu_model.source_lines import SourceLine, line_that_raised
from poptorch._dataloader.items import Chunk, ItemStructure, Layout, Ring, SharedFile, Transfer, glue
from poptorch._utils import custom_arg_parsers

_GRACE_IN_S = 5.0

# A worker process of torch's loader puts the traceback of an exception into its message.
_WITHIN_TORCH_WORKER = "Original Traceback (most recent call last):\n"
_TORCH = os.path.dirname(torch.__file__) + os.sep
_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (.+)$', re.MULTILINE)


class LoadersTraceback(Exception):
    """The traceback of an exception in the loader's process, shown as the cause of one in the program."""


@dataclass(frozen=True)
class Failure:
    """To the program, as the last message: the exception that ends the process, as text, since not all can be pickled.

    That is its type and message, the user's line that raised it ("" if there is none), and its traceback.
    """

    what: str
    line: str
    trace: str

    @classmethod
    def of(cls, error: Exception) -> Failure:
        told = traceback.TracebackException.from_exception(error)
        trace, what, line = "".join(told.format()), "".join(told.format_exception_only()), line_that_raised(error)
        _, _, within = what.partition(_WITHIN_TORCH_WORKER)
        frames = list(_FRAME.finditer(within))
        if frames:
            # The innermost line outside torch; if there is none, the innermost one.
            users = [frame for frame in frames if not frame[1].startswith(_TORCH)] or frames
            file, number, function = users[-1].groups()
            line = SourceLine(file, int(number), function)
            # The last frame's source text is indented. The message follows; any line of it but the first may be, too.
            lines = within[frames[-1].end() + 1 :].split("\n")
            what = "\n".join(dropwhile(lambda text: text.startswith("  "), lines))
        name, colon, message = what.strip().partition(":")
        short = name.rpartition(".")[2] + colon + message  # `Type: message` of `package.module.Type: message`
        return cls(short, "" if line is None else str(line), trace)

    def before(self, consequence: str) -> str:
        return f"{self.what}{f' ({self.line})' if self.line else ''}\n{consequence}"

    @property
    def cause(self) -> LoadersTraceback:
        """An exception that shows the traceback when Python prints one that was raised from it."""
        return LoadersTraceback(f'\n"""\n{self.trace}"""')


class Ready(NamedTuple):
    """To the program: the first item is loaded and has this structure; `structure` is pickled."""

    structure: bytes
    layout: Layout


class Item(NamedTuple):
    """To the program: the next item is in this slot, if short with so many rows; no slot means the end of the pass."""

    generation: int
    slot: int | None = None
    rows: int | None = None


class Begin(NamedTuple):
    """From the program: deliver this pass now; a new generation discards all items but the one in the held slot.

    Its other messages are the number of a slot that may be written again, and `None`, which asks the process to end.
    """

    generation: int
    pass_number: int
    held_slot: int | None


@dataclass(frozen=True)
class Policy:
    """What to load ahead, and how to build items from what the data set delivers."""

    slots: int
    load_indefinitely: bool
    early_preload: bool
    rebatched_size: int | None
    keep_remainder: bool
    short_items: bool


@dataclass(frozen=True, eq=False)
class Job:
    """The arguments of the process; `transfer` holds the data set and the registered parsers.

    With the defaults, the program's own, a seeded program shuffles and augments in the background as it would in line.
    """

    transfer: Transfer
    ring_file: SharedFile
    policy: Policy
    connection: Connection
    parents_connection: Connection | None
    torch_state: bytes = field(default_factory=lambda: torch.get_rng_state().numpy().tobytes())
    numpy_state: Any = field(default_factory=np.random.get_state)
    python_state: Any = field(default_factory=random.getstate)
    default_dtype: torch.dtype = field(default_factory=torch.get_default_dtype)
    start_method: str | None = field(default_factory=partial(multiprocessing.get_start_method, allow_none=True))
    parent_pid: int = field(default_factory=os.getpid)


class _Stopped(Exception):
    """The program asked the process to stop, or has ended."""


class _Restarted(Exception):
    """The program wants the data from item 0."""


def run(job: Job) -> None:
    """Run the loader's process until it is told to stop; an error is printed and reported, and ends it with code 1."""
    try:
        _prepare(job)
        _Producer(job).run()
    except _Stopped:
        pass
    except KeyboardInterrupt:
        # The same key stroke interrupted the program, which decides; a second one must not interrupt the exit.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except Exception as error:
        traceback.print_exc()
        with suppress(OSError):
            job.connection.send(Failure.of(error))
        sys.exit(1)


def _prepare(job: Job) -> None:
    # A forked process starts with its parent's handlers, which belong to a test runner or a notebook.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if job.parents_connection is not None:
        job.parents_connection.close()
        _forget_fork_server()
    threading.Thread(target=_leave_with_parent, args=(job.parent_pid,), daemon=True).start()
    # A loader's own workers start here as they would in the program, not in the way this process was started:
    # a second fork server, or a new interpreter for each, would take seconds.
    multiprocessing.set_start_method(job.start_method, force=True)
    # The program's own computation needs the cores; copying an item does not.
    torch.set_num_threads(1)
    torch.set_default_dtype(job.default_dtype)
    torch.set_rng_state(torch.frombuffer(bytearray(job.torch_state), dtype=torch.uint8))
    np.random.set_state(job.numpy_state)
    random.setstate(job.python_state)


def _forget_fork_server() -> None:
    """Let workers of a forked process start a fork server of their own: they cannot use the parent's."""
    server: Any = forkserver._forkserver
    server._forkserver_address = server._forkserver_alive_fd = server._forkserver_pid = None


def _leave_with_parent(parent_pid: int) -> None:
    """Wait until the parent ends for any reason, then end this process even if it is busy loading."""
    try:
        with suppress(ProcessLookupError):
            wait([os.pidfd_open(parent_pid)])
    except (AttributeError, OSError):
        # Only Linux can watch any process; elsewhere this pipe closes when the parent and its forked copies end.
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
    main_thread = threading.main_thread().ident
    if main_thread is not None:
        signal.pthread_kill(main_thread, signal.SIGINT)
    time.sleep(_GRACE_IN_S)
    os._exit(1)


class _Producer:
    def __init__(self, job: Job) -> None:
        self._dataset, parsers = job.transfer.open()
        custom_arg_parsers.update(parsers)
        self._policy, self._ring_file, self._connection = job.policy, job.ring_file, job.connection
        self._structure: ItemStructure | None = None
        self._free = deque(range(job.policy.slots))
        self._generation, self._begun_pass, self._loaded = 0, -1, 0

    def run(self) -> None:
        items = self._items()
        first = next(items, None)
        rows = self._policy.rebatched_size
        if first is None:
            why = "there is no item to load, or fewer samples than one item needs"
            raise ValueError(
                f"The Dataset is empty: {why if rows is None else f'it has fewer than the {rows} rows of one item'}."
            )
        layout = tuple((t.shape if rows is None else torch.Size((rows, *t.shape[1:])), t.dtype) for t in first[0])
        self._ring = Ring(self._ring_file, layout, self._policy.slots)
        self._ring_file.close()
        # Sent as it is, torch would move the tensors of a custom type into shared memory of their own.
        self._say(Ready(pickle.dumps(self._structure), layout))
        self._store(self._free.popleft(), first)
        del first
        number, ahead = 0, self._policy.early_preload
        while True:
            try:
                self._pass(items, -1 if ahead else number)
                # After an empty pass the next one is likely to be empty too: going on would never pause.
                number, ahead = number + 1, self._policy.load_indefinitely and self._loaded > 0
                self._wait_for(-1 if ahead else number)
            except _Restarted:
                number, ahead = 0, self._policy.early_preload
            items, self._loaded = self._items(), 0

    def _items(self) -> Iterator[list[Chunk]]:
        """Start a new pass over the data: each item is a list of chunks, flattened like the first item."""
        dataset = self._dataset
        if hasattr(dataset, "__iter__") or not hasattr(dataset, "__len__"):
            items = iter(dataset)
        else:
            # Python would go on until an IndexError, which a map-style data set need not raise.
            items = (dataset[index] for index in range(len(dataset)))
        chunks = map(self._flattened, items)
        if self._policy.rebatched_size is None:
            return ([chunk] for chunk in chunks)
        return glue(chunks, self._policy.rebatched_size, self._policy.keep_remainder)

    def _flattened(self, item: Any) -> Chunk:
        if self._structure is None:
            self._structure = ItemStructure.of(item)
        return self._structure.flatten(item)

    def _pass(self, items: Iterator[list[Chunk]], begun_pass: int) -> None:
        while True:
            self._wait_for(begun_pass, slot=True)
            item = next(items, None)
            if item is None:
                self._say(Item(self._generation))
                return
            self._store(self._free.popleft(), item)

    def _store(self, slot: int, item: list[Chunk]) -> None:
        by_rows = self._policy.rebatched_size is not None or self._policy.short_items
        rows = self._ring.write(slot, item, by_rows=by_rows)
        self._loaded += 1
        self._say(Item(self._generation, slot, rows))

    def _say(self, message: Ready | Item) -> None:
        try:
            self._connection.send(message)
        except OSError:
            raise _Stopped from None

    def _wait_for(self, begun_pass: int, *, slot: bool = False) -> None:
        """Handle the program's messages until it has begun this pass and, if `slot`, a slot is free."""
        while self._connection.poll() or self._begun_pass < begun_pass or (slot and not self._free):
            try:
                command = self._connection.recv()
            except (EOFError, OSError):
                raise _Stopped from None
            if command is None:
                raise _Stopped
            if isinstance(command, int):
                self._free.append(command)
                continue
            self._begun_pass = command.pass_number
            if command.generation != self._generation:
                self._generation = command.generation
                self._free = deque(number for number in range(self._policy.slots) if number != command.held_slot)
                raise _Restarted
