"""The program's side of the loader's process: start it, exchange messages, detect its death, and end it."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import pickle
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

import torch

from ipu_model.errors import Error, unsupported
from ipu_model.process import interrupt_postponed
from poptorch._dataloader.items import ItemStructure
from poptorch._dataloader.shared import CannotSend, Ring, SharedFile, Transfer
from poptorch._dataloader.worker import (
    Begin,
    Failed,
    ItemStored,
    Job,
    PassEnded,
    Policy,
    ProcessState,
    Ready,
    Release,
    Stop,
    run,
)
from poptorch._impl import createPoptorchError
from poptorch._utils import custom_arg_parsers
from poptorch.enums import SharingStrategy

_START_METHODS = {
    SharingStrategy.SharedMemory: "spawn",
    SharingStrategy.FileSystem: "spawn",
    SharingStrategy.Fork: "fork",
    SharingStrategy.ForkServer: "forkserver",
}
_NOT_STARTED = "AsynchronousDataAccessor: the worker thread failed to start"
_PATIENCE_IN_S = 10.0
_LAST_PATIENCE_IN_S = 2.0
_LOOK_IN_S = 0.5


class WorkerDied(Exception):
    """The process ended unexpectedly; the message gives the known reason."""


class WorkerProcess:
    """A child process that fills a ring with the items of a data set.

    Raises `poptorch.Error` if the process cannot be started, or ends before the first item is loaded.
    """

    def __init__(self, dataset: Any, policy: Policy, strategy: SharingStrategy) -> None:
        _check(dataset, strategy)
        context: Any = multiprocessing.get_context(_START_METHODS[strategy])
        if strategy is SharingStrategy.ForkServer:
            _preload_fork_server()
        self.ended = False
        self._ring_file = SharedFile()
        self._connection, childs_end = context.Pipe()
        on_disk = strategy is SharingStrategy.FileSystem
        file = None if strategy is SharingStrategy.Fork else SharedFile(on_disk=on_disk)
        job = Job(
            transfer=Transfer((dataset, dict(custom_arg_parsers)), file),
            ring_file=self._ring_file,
            policy=policy,
            state=ProcessState(),
            start_method=multiprocessing.get_start_method(allow_none=True),
            parent_pid=os.getpid(),
            connection=childs_end,
            parents_connection=self._connection if strategy is SharingStrategy.Fork else None,
        )
        # Not a daemon: the wrapped loader may have worker processes of its own.
        self._process = context.Process(target=run, args=(job,), daemon=False, name="poptorch-loader")
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
        finally:
            job.transfer.close()
            childs_end.close()
            if self._process.pid is None:
                self._connection.close()
                self._ring_file.close()

    def first_item(self) -> tuple[ItemStructure, Ring]:
        """Block until the first item is loaded; return the structure of items and the ring that holds them.

        Raises `poptorch.Error` if loading it fails.
        """
        try:
            self.wait_for_message()
            message = self.take_message()
        except WorkerDied as death:
            raise _start_failed(str(death)) from None
        if isinstance(message, Failed):
            raise createPoptorchError(message.failure.before(f"{_NOT_STARTED}.")) from message.failure.cause
        assert isinstance(message, Ready)
        ring = Ring(self._ring_file, message.layout)
        self._ring_file.close()
        return pickle.loads(message.structure), ring

    def send(self, message: Begin | Release | Stop) -> None:
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
    def take_message(self) -> Ready | ItemStored | PassEnded | Failed:
        """Return the message that has arrived; raise `WorkerDied` if the process died while sending it."""
        try:
            message: Ready | ItemStored | PassEnded | Failed = self._connection.recv()
        except (EOFError, OSError):
            self._process.join(_LAST_PATIENCE_IN_S)
            raise WorkerDied(self._how_it_ended()) from None
        return message

    def terminate(self) -> None:
        """End the process: ask, then interrupt, then force it. Does nothing the second time."""
        if self.ended:
            return
        self.ended = True
        try:
            self.send(Stop())
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
            known = {int(number): number.name for number in signal.Signals}
            return f"the process was killed by signal {-code} ({known.get(-code, 'unknown')})"
        return (
            f"the process ended with exit code {code}; if it says why, that is on the standard error stream. "
            'Programs that load asynchronously need an `if __name__ == "__main__":` guard around what they do'
        )


def _check(dataset: Any, strategy: SharingStrategy) -> None:
    if sys.platform == "win32":
        nearest = "Use DataLoaderMode.Sync, with num_workers if need be."
        raise unsupported("Asynchronous data loading on Windows", nearest)
    iterated = isinstance(dataset, torch.utils.data.DataLoader) and dataset._iterator is not None
    if strategy is SharingStrategy.Fork and iterated:
        raise _start_failed(
            "with SharingStrategy.Fork it would talk to the workers of the DataLoader, which belong to "
            "this process since it was iterated over. Make a new DataLoader, or use ForkServer"
        )


def _preload_fork_server() -> None:
    """Let the fork server import this package once, instead of every process that it starts."""
    # There is no public way to read the list, and the program's own entries must remain.
    server = multiprocessing.forkserver._forkserver
    modules: list[str] = list(getattr(server, "_preload_modules", ["__main__"]))
    if __name__ not in modules:
        multiprocessing.get_context("forkserver").set_forkserver_preload([*modules, __name__])


def _start_failed(reason: str) -> Error:
    return createPoptorchError(f"{_NOT_STARTED}: {reason}.")
