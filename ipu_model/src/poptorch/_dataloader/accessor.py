"""`poptorch.AsynchronousDataAccessor`: items loaded ahead by another process, which it starts, talks to and ends."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import pickle
import signal
import sys
from collections.abc import Sized
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.util import Finalize
from typing import Any, NoReturn

import torch
from typing_extensions import Self

from ipu_model.errors import Error, require, unsupported
from ipu_model.explore.loader import LoaderFacts, facts_of_loader
from ipu_model.process import interrupt_postponed
from poptorch._dataloader.items import CannotSend, Chunk, ItemLoader, ItemStructure, Ring, SharedFile, Transfer
from poptorch._dataloader.worker import Begin, Failure, Item, Job, Policy, Ready, run
from poptorch._impl import createPoptorchError
from poptorch._utils import custom_arg_parsers
from poptorch.enums import SharingStrategy

_FAILED = "An error occurred in the data fetcher"
_ENDED = "Its process has ended; create a new loader to continue."
_NOT_STARTED = "AsynchronousDataAccessor: the worker thread failed to start"
_PATIENCE_IN_S = 10.0
_LAST_PATIENCE_IN_S = 2.0
_LOOK_IN_S = 0.5
_MOST_SLOTS = 1 << 16


class WorkerDied(Exception):
    """The process ended unexpectedly; the message gives the known reason."""


class WorkerProcess:
    """A child process that fills a ring with the items of a data set; `poptorch.Error` if it cannot be started."""

    def __init__(self, dataset: Any, policy: Policy, strategy: SharingStrategy) -> None:
        if sys.platform == "win32":
            nearest = "Use DataLoaderMode.Sync, with num_workers if need be."
            raise unsupported("Asynchronous data loading on Windows", nearest)
        is_forked = strategy is SharingStrategy.Fork
        if is_forked and isinstance(dataset, torch.utils.data.DataLoader) and dataset._iterator is not None:
            raise _start_failed(
                "with SharingStrategy.Fork it would talk to the workers of the DataLoader, which belong to "
                "this process since it was iterated over. Make a new DataLoader, or use ForkServer"
            )
        is_server = strategy is SharingStrategy.ForkServer
        context: Any = multiprocessing.get_context("forkserver" if is_server else "fork" if is_forked else "spawn")
        if is_server:
            # It imports this package once, instead of every process that it starts. There is no public way to read its
            # list, and the program's own entries must remain.
            modules: list[str] = list(getattr(multiprocessing.forkserver._forkserver, "_preload_modules", ["__main__"]))
            if __name__ not in modules:
                context.set_forkserver_preload([*modules, __name__])
        self._ring_file = SharedFile()
        self._connection, childs_end = context.Pipe()
        file = None if is_forked else SharedFile(on_disk=strategy is SharingStrategy.FileSystem)
        job = Job(
            transfer=Transfer((dataset, dict(custom_arg_parsers)), file),
            ring_file=self._ring_file,
            policy=policy,
            connection=childs_end,
            parents_connection=self._connection if is_forked else None,
        )
        # Not a daemon: the wrapped loader may have worker processes of its own.
        self._process = context.Process(target=run, args=(job,), daemon=False, name="poptorch-loader")
        try:
            self._start(strategy)
        finally:
            job.transfer.close()
            childs_end.close()
            if self._process.pid is None:
                self._connection.close()
                self._ring_file.close()

    def _start(self, strategy: SharingStrategy) -> None:
        try:
            self._process.start()
        except CannotSend as error:
            raise _start_failed(
                f"the data set cannot be sent to another process with SharingStrategy.{strategy.name} ({error}). "
                "Define its classes and functions at the top level of a module, or use SharingStrategy.Fork"
            ) from error
        except (EOFError, ConnectionError) as error:
            reason = "the fork server ended; its traceback is on the standard error stream"
            raise _start_failed(reason) from error
        except OSError as error:
            raise _start_failed(
                f"the system refuses what SharingStrategy.{strategy.name} needs ({error.strerror or error}). Make room "
                "in the folder for temporary files (TMPDIR names another one) and in memory, or use "
                "SharingStrategy.Fork"
            ) from error

    def first_item(self, slots: int) -> tuple[ItemStructure, Ring]:
        """Block until the first item is loaded; return the structure of items and the ring that holds them."""
        try:
            self.wait_for_message()
            message = self.take_message()
        except WorkerDied as death:
            raise _start_failed(str(death)) from None
        if isinstance(message, Failure):
            raise createPoptorchError(message.before(f"{_NOT_STARTED}.")) from message.cause
        assert isinstance(message, Ready)
        ring = Ring(self._ring_file, message.layout, slots)
        self._ring_file.close()
        return pickle.loads(message.structure), ring

    def send(self, message: Begin | int | None) -> None:
        """Send the process a message; if it has ended, waiting for the next message reports that."""
        with suppress(OSError), interrupt_postponed():  # A partial message would corrupt all later ones.
            self._connection.send(message)

    def wait_for_message(self) -> None:
        """Block until there is a message to take: the part of it that Ctrl-C may interrupt.

        Raises `WorkerDied` if the process ends instead; if it was killed, its earlier messages are ignored.
        """
        if not self._process.is_alive() and (self._process.exitcode or 0) < 0:
            raise WorkerDied(self._how_it_ended())
        while not self._connection.poll():
            wait([self._connection, self._process.sentinel], timeout=_LOOK_IN_S)
            # The sentinel can be held open by the process's own children, so ask the system too.
            if not self._process.is_alive() and not self._connection.poll():
                raise WorkerDied(self._how_it_ended())

    @interrupt_postponed()
    def take_message(self) -> Ready | Item | Failure:
        """Return the message that has arrived; raise `WorkerDied` if the process died while sending it."""
        try:
            message: Ready | Item | Failure = self._connection.recv()
        except (EOFError, OSError):
            self._process.join(_LAST_PATIENCE_IN_S)
            raise WorkerDied(self._how_it_ended()) from None
        return message

    def terminate(self) -> None:
        """End the process: ask, then interrupt, then force it."""
        try:
            self.send(None)
            self._process.join(_PATIENCE_IN_S)
            for number, patience in ((signal.SIGINT, _PATIENCE_IN_S), (signal.SIGTERM, _LAST_PATIENCE_IN_S)):
                if self._process.is_alive():
                    os.kill(self._process.pid, number)
                    self._process.join(patience)
        finally:
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
        self._connection.close()
        self._ring_file.close()

    def _how_it_ended(self) -> str:
        code = self._process.exitcode
        if code is not None and code < 0:
            name = signal.Signals(-code).name if -code in iter(signal.Signals) else "unknown"
            return f"the process was killed by signal {-code} ({name})"
        return (
            f"the process ended with exit code {code}; if it says why, that is on the standard error stream. "
            'Programs that load asynchronously need an `if __name__ == "__main__":` guard around what they do'
        )


def _start_failed(reason: str) -> Error:
    return createPoptorchError(f"{_NOT_STARTED}: {reason}.")


class AsynchronousDataAccessor:
    """Iterates over `dataset` in another process, which keeps a ring of items in shared memory filled.

    Items are tensors, flat tuples, lists or dicts of tensors, or registered custom types; tuples come out as lists.
    Returned tensors are views of the ring, valid until the next `next()`: clone the tensors that you want to keep.

    Args:
        dataset: any iterable, torch data set or loader, or a `poptorch.DataLoader` in `Sync` mode.
        buffer_size: number of items the ring holds, the one in use included.
        miss_sleep_time_in_ms: has no effect here: the process is woken instead of polling a full ring.
        load_indefinitely: start the next pass over the data as soon as one ends, not when it is asked for.
        early_preload: fill the ring before the first iterator is asked for; otherwise only the first item is loaded.
        sharing_strategy: how the data set gets into the process.
        rebatched_size: join and cut the items of `dataset` along dimension 0 into items of this many rows.

    Raises `Error`: the data set cannot be sent, is empty, or raises before its first item, or `dataset` is a loader
    that works this way already; `AssertionError`: `rebatched_size` below 2, or missing where the last item would be
    shorter.
    """

    def __init__(
        self,
        dataset: Any,
        buffer_size: int = 3,
        miss_sleep_time_in_ms: float = 0.1,
        load_indefinitely: bool = True,
        early_preload: bool = False,
        sharing_strategy: SharingStrategy = SharingStrategy.ForkServer,
        rebatched_size: int | None = None,
    ) -> None:
        _check(dataset, buffer_size, miss_sleep_time_in_ms, rebatched_size)
        self._dataset = dataset
        self._rebatched_size = rebatched_size
        self._slots = buffer_size
        keeps_remainder = isinstance(dataset, ItemLoader) and dataset.keeps_remainder
        has_short_items = isinstance(dataset, ItemLoader) and dataset.batches_per_item is not None
        policy = Policy(buffer_size, load_indefinitely, early_preload, rebatched_size, keeps_remainder, has_short_items)
        self._generation, self._pass, self._consumed, self._at_end = 0, -1, 0, True
        self._held_slot: int | None = None
        self._failure: str | None = None
        self._worker = WorkerProcess(dataset, policy, SharingStrategy(sharing_strategy))
        # Runs on deletion, and at the end of this process before it waits for its children; never in a forked copy.
        self._finalizer = Finalize(self, self._worker.terminate, exitpriority=10)
        try:
            self._structure, self._ring = self._worker.first_item(buffer_size)
        except BaseException:
            self.terminate()
            raise

    def terminate(self) -> None:
        self._finalizer()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "cannot pickle or copy an 'AsynchronousDataAccessor' object: one process loads for it. Make another one "
            "for the same data set."
        )

    def __len__(self) -> int:
        """Return the number of items of a pass; raise `TypeError` if the data set has no length."""
        if self._rebatched_size is None:
            return len(self._dataset)
        batch_size = getattr(self._dataset, "batch_size", None)
        if not isinstance(self._dataset, Sized) or batch_size is None:
            raise TypeError(
                "The length of a re-batched accessor needs a loader with a length and a batch_size; "
                f"{type(self._dataset).__name__} does not have both."
            )
        return len(self._dataset) * int(batch_size) // self._rebatched_size

    def __iter__(self) -> Self:
        """Return the accessor, at the first item of a pass.

        Continues with the next pass after a complete one, starts from the beginning after an incomplete one, and does
        nothing if no item was taken yet. Raises `AssertionError` after `terminate()` or a failure of the process.
        """
        self._check_usable()
        if self._at_end:
            self._begin(self._generation, self._pass + 1)
        elif self._consumed:
            self._begin(self._generation + 1, 0)
        return self

    def __next__(self) -> Any:
        """Return the next item; raise `AssertionError` if the process has failed or was terminated."""
        self._check_usable()
        if self._pass < 0:
            iter(self)
        if self._at_end:
            raise StopIteration
        with interrupt_postponed():
            if self._held_slot is not None:
                self._worker.send(self._held_slot)
                self._held_slot = None
        try:
            tensors = None
            while tensors is None:
                self._worker.wait_for_message()
                tensors = self._tensors_of_message()
        except WorkerDied as death:
            self._failure = f"{_FAILED}: {death}. {_ENDED}"
            raise AssertionError(self._failure) from None
        return self._structure.rebuild(tensors)

    @interrupt_postponed()
    def _tensors_of_message(self) -> Chunk | None:
        """Take one message and record its effect in one step: a message without its record would lose an item."""
        message = self._worker.take_message()
        if isinstance(message, Failure):
            self._failure = message.before(f"{_FAILED}. {_ENDED}")
            raise AssertionError(self._failure) from message.cause
        if not isinstance(message, Item) or message.generation != self._generation:
            return None  # It belongs to an abandoned generation.
        if message.slot is None:
            self._at_end = True
            raise StopIteration
        self._held_slot = message.slot
        self._consumed += 1
        return self._ring.read(message.slot, message.rows)

    @interrupt_postponed()
    def _begin(self, generation: int, pass_number: int) -> None:
        self._generation, self._pass = generation, pass_number
        self._consumed, self._at_end = 0, False
        self._worker.send(Begin(generation, pass_number, self._held_slot))

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise AssertionError(self._failure)
        require(self._finalizer.still_active(), "The data accessor was terminated; make a new one to load more data.")


@facts_of_loader.register
def _(accessor: AsynchronousDataAccessor) -> LoaderFacts:
    """Return how an accessor loads: all slots of its ring may be full, beside what workers of its data set keep."""
    of_data_set = facts_of_loader(accessor._dataset)
    return LoaderFacts(loads_ahead=True, workers=of_data_set.workers, ready=accessor._slots + of_data_set.ready)


def _check(dataset: Any, buffer_size: Any, miss_sleep_time_in_ms: Any, rebatched_size: Any) -> None:
    slots = isinstance(buffer_size, int) and 1 <= buffer_size <= _MOST_SLOTS
    require(slots, f"buffer_size is the number of slots of the ring, from 1 to {_MOST_SLOTS}; got {buffer_size!r}.")
    waits = isinstance(miss_sleep_time_in_ms, (int, float)) and miss_sleep_time_in_ms >= 0
    require(waits, f"miss_sleep_time_in_ms must be a number, not negative; got {miss_sleep_time_in_ms!r}.")
    rows = rebatched_size is None or (isinstance(rebatched_size, int) and rebatched_size > 1)
    require(rows, f"rebatched_size must be a whole number > 1; got {rebatched_size!r}.")
    if isinstance(dataset, AsynchronousDataAccessor):
        raise createPoptorchError(
            "The dataset is an AsynchronousDataAccessor itself, which only the process that made it can iterate over. "
            "Give what it iterates over instead."
        )
    if not isinstance(dataset, ItemLoader):
        return
    if dataset.loads_ahead:
        raise createPoptorchError(
            "The DataLoader already uses an AsynchronousDataAccessor internally: iterate over it directly, "
            "or create it with mode=DataLoaderMode.Sync."
        )
    short_last_item = dataset.keeps_remainder and (dataset.combinedBatchSize or 1) > 1
    require(
        not short_last_item or rebatched_size is not None,
        "An AsynchronousDataAccessor over a DataLoader with drop_last=False only works if 'rebatched_size' "
        "is specified too, because the last item can be shorter than the slots. Use drop_last=True, or the "
        "DataLoader's own mode=DataLoaderMode.AsyncRebatched.",
    )
