"""The parent's hold on the loader's process: start it, talk to it, notice its death, end it."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

import torch

from ipu_model.errors import Error, unsupported
from ipu_model.interrupts import postponed
from poptorch._args_parser import registered_parsers
from poptorch._impl import createPoptorchError
from poptorch._loading.ambient import Ambient
from poptorch._loading.messages import Failed, Ready, Stop, ToChild, ToParent, receive_from_child, send
from poptorch._loading.shared_file import SharedFile
from poptorch._loading.transfer import CannotSend, InFile, Inherited, Parcel, Pickled
from poptorch._loading.worker import Job, Policy, run
from poptorch.enums import SharingStrategy

_START_METHODS = {
    SharingStrategy.SharedMemory: "spawn",
    SharingStrategy.FileSystem: "spawn",
    SharingStrategy.Fork: "fork",
    SharingStrategy.ForkServer: "forkserver",
}
_PATIENCE_IN_S = 10.0
_LAST_PATIENCE_IN_S = 2.0
_LOOK_IN_S = 0.5


class WorkerDied(Exception):
    """The process ended without being told to; the text says what is known about the reason."""


class WorkerProcess:
    """A child process that fills a ring with the items of a data set."""

    def __init__(self, dataset: Any, policy: Policy, strategy: SharingStrategy) -> None:
        context: Any = multiprocessing.get_context(_start_method(strategy))
        if strategy is SharingStrategy.ForkServer:
            _preload_fork_server()
        self.ring_file = SharedFile.in_memory()
        self._ended = False
        self._connection, childs_end = context.Pipe()
        parcel = _pack(dataset, strategy)
        job = Job(
            parcel=parcel,
            ring_file=self.ring_file,
            policy=policy,
            ambient=Ambient.capture(),
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
            raise _unpicklable(error, strategy) from error
        except (EOFError, ConnectionError) as error:
            reason = "the fork server ended; its traceback is on the standard error stream"
            raise _start_failed(reason) from error
        except OSError as error:
            raise _no_room(error, strategy) from error
        finally:
            parcel.close()
            childs_end.close()
            if self._process.pid is None:
                self._connection.close()
                self.ring_file.close()

    @property
    def pid(self) -> int | None:
        """The number of the process."""
        pid: int | None = self._process.pid
        return pid

    def wait_until_ready(self) -> Ready:
        """Block until the first item is loaded; raise `poptorch.Error` if that fails."""
        try:
            message = self.receive()
        except WorkerDied as death:
            raise _start_failed(str(death)) from None
        if isinstance(message, Ready):
            return message
        raise _start_failed(message.reason if isinstance(message, Failed) else f"unexpected {message}")

    def send(self, message: ToChild) -> None:
        """Tell the process something; if it is gone, the next `receive()` says so."""
        with suppress(OSError), postponed():  # Half a message would spoil all later ones.
            send(self._connection, message)

    def receive(self) -> ToParent:
        """Block until the process says something; raises like `wait_for_message`."""
        self.wait_for_message()
        return self.take_message()

    def wait_for_message(self) -> None:
        """Block until there is something to receive: the part of it that Ctrl-C may interrupt.

        Raises `WorkerDied` if the process ends instead; if it was killed, whatever it said before does not count.
        """
        self._check_not_killed()
        while not self._connection.poll():
            wait([self._connection, self._process.sentinel], timeout=_LOOK_IN_S)
            # The sentinel can be held open by the process's own children, so ask the system too.
            if not self._process.is_alive() and not self._connection.poll():
                raise WorkerDied(self._obituary())

    @postponed()
    def take_message(self) -> ToParent:
        """Return the message that was waited for; raise `WorkerDied` if it was the last sign of the process."""
        try:
            return receive_from_child(self._connection)
        except (EOFError, OSError):
            self._process.join(_LAST_PATIENCE_IN_S)
            raise WorkerDied(self._obituary()) from None

    def terminate(self) -> None:
        """End the process: ask, then interrupt, then force it.

        Does nothing the second time.
        """
        if self._ended:
            return
        self._ended = True
        try:
            self._end()
        except BaseException:
            self._process.kill()
            raise
        self._connection.close()
        self.ring_file.close()

    @property
    def ended(self) -> bool:
        """Whether `terminate()` was called."""
        return self._ended

    def _end(self) -> None:
        self.send(Stop())
        self._process.join(_PATIENCE_IN_S)
        if self._process.is_alive():
            os.kill(self._process.pid, signal.SIGINT)
            self._process.join(_PATIENCE_IN_S)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join(_LAST_PATIENCE_IN_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _check_not_killed(self) -> None:
        # Whatever a killed process still had in the pipe is not trusted.
        if not self._process.is_alive() and (self._process.exitcode or 0) < 0:
            raise WorkerDied(self._obituary())

    def _obituary(self) -> str:
        code = self._process.exitcode
        if code is not None and code < 0:
            return f"the process was killed by signal {-code} ({_signal_name(-code)})"
        return (
            f"the process ended with exit code {code}; if it says why, that is on the standard error stream. "
            'Programs that load asynchronously need an `if __name__ == "__main__":` guard around what they do'
        )


def _start_method(strategy: SharingStrategy) -> str:
    if sys.platform == "win32":
        nearest = "Use DataLoaderMode.Sync, with num_workers if need be."
        raise unsupported("Asynchronous data loading on Windows", nearest)
    return _START_METHODS[strategy]


def _pack(dataset: Any, strategy: SharingStrategy) -> Parcel:
    value = (dataset, registered_parsers())
    if strategy is SharingStrategy.Fork:
        if isinstance(dataset, torch.utils.data.DataLoader) and dataset._iterator is not None:
            raise _start_failed(
                "with SharingStrategy.Fork it would talk to the workers of the DataLoader, which belong to "
                "this process since it was iterated over. Make a new DataLoader, or use ForkServer"
            )
        return Inherited(value)
    if strategy is SharingStrategy.SharedMemory:
        return InFile(value, SharedFile.in_memory())
    if strategy is SharingStrategy.FileSystem:
        return InFile(value, SharedFile.on_disk())
    return Pickled(value)


def _preload_fork_server() -> None:
    """Let the fork server import this package once, instead of every process that it starts."""
    # There is no public way to read the list, and a program's own entries must stay.
    server = multiprocessing.forkserver._forkserver
    modules: list[str] = list(getattr(server, "_preload_modules", ["__main__"]))
    if __name__ not in modules:
        multiprocessing.get_context("forkserver").set_forkserver_preload([*modules, __name__])


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _start_failed(reason: str) -> Error:
    return createPoptorchError(f"AsynchronousDataAccessor: the worker thread failed to start: {reason}.")


def _no_room(error: OSError, strategy: SharingStrategy) -> Error:
    return _start_failed(
        f"the system refuses what SharingStrategy.{strategy.name} needs ({error.strerror or error}). Make room in the "
        "folder for temporary files (TMPDIR names another one) and in memory, or use SharingStrategy.Fork"
    )


def _unpicklable(error: Exception, strategy: SharingStrategy) -> Error:
    return _start_failed(
        f"the data set cannot be sent to another process with SharingStrategy.{strategy.name} ({error}). "
        "Define its classes and functions at the top level of a module, or use SharingStrategy.Fork"
    )
