"""Runs the instances of one host, and ends them when poprun is gone.

Reads its job from stdin as messages of `popdist.run.frames` and writes what happens to stdout in the same form. The
end of stdin means that poprun, or the connection to it, has ended.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import signal
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, BinaryIO

from ipu_model.errors import Error
from popdist.paths import STAND_INS, folder_of_horovod
from popdist.run.frames import Job, Writer, parse

# How long the instances and torch's launcher have to end once poprun has.
_LAST_RESORT_SECONDS = 10


def main() -> None:
    """Do the job that stdin describes."""
    stream, writer = _take_over_standard_streams()
    commands = _Commands(stream)
    message = commands.next()
    if message is None:
        return
    job = Job(**{name: value for name, value in message.items() if name != "kind"})
    if not job.talkative:
        logging.disable(logging.CRITICAL)
    try:
        _work(job, commands, writer)
    except (Error, OSError, RuntimeError) as error:
        writer.send("trouble", text=error.message if isinstance(error, Error) else str(error))
        commands.wait_for_their_end()


def _take_over_standard_streams() -> tuple[BinaryIO, Writer]:
    """Keep stdin and stdout for messages: instances get an empty stdin, and prints of libraries go to stderr."""
    commands = os.fdopen(os.dup(0), "rb")
    messages = os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return commands, Writer(messages)


class _Commands:
    """The messages on stdin. Their end ends this process and the instances, unless it has nothing left to do."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._messages: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._idle, self._ended = threading.Event(), threading.Event()
        self.clean_up: Callable[[], None] = lambda: None
        threading.Thread(target=self._read, daemon=True).start()

    def next(self) -> dict[str, Any] | None:
        """Wait for the next message; `None` if there are no more."""
        return self._messages.get()

    def wait_for_their_end(self) -> None:
        """Return when there are no more messages: nothing is left to do."""
        self._idle.set()
        self._ended.wait()

    def _read(self) -> None:
        for line in self._stream:
            self._messages.put(parse(line))
        self._ended.set()
        self._messages.put(None)
        if self._idle.is_set():
            return
        os.kill(os.getpid(), signal.SIGTERM)
        # Torch's handler runs in the main thread, which cannot hear it while it waits for other agents.
        deadline = time.monotonic() + _LAST_RESORT_SECONDS
        while _has_children() and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(1)
        self.clean_up()
        os._exit(1)


def _has_children() -> bool:
    """Whether instances run; where the system cannot tell, they may."""
    if not hasattr(os, "waitid"):
        return True
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _work(job: Job, commands: _Commands, writer: Writer) -> None:
    _check(job)
    # Only now, so that mistakes are told at once: this takes two seconds.
    from popdist.run.elastic import launch, meeting_place, output_of

    os.environ.update(job.shared)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, _cores() // job.instances)))
    _offer_horovod()
    store, port = None, job.port
    if job.host == 0:
        store = meeting_place(job)
        port = store.port
        writer.send("port", port=port)
    else:
        message = commands.next()
        if message is None:
            return
        port = message["port"]
    output = output_of(job, port, writer)
    commands.clean_up = output.clean_up
    writer.send("ended", ends=[vars(end) for end in launch(job, port, output)])
    # Instances on other hosts may still meet at the first host's store: it goes when poprun says so.
    commands.wait_for_their_end()
    del store


def _check(job: Job) -> None:
    """Refuse a folder or program that this host does not have."""
    try:
        os.chdir(job.folder)
    except OSError as error:
        raise Error(
            f"host {job.name} has no folder {job.folder} ({error.strerror}): programs run in the folder that poprun "
            "was started in, which all hosts must have"
        ) from None
    if shutil.which(job.command[0], path=job.shared.get("PATH", os.environ.get("PATH"))) is None:
        raise Error(
            f"program {job.command[0]!r} was not found on host {job.name}: it is neither a command in PATH nor an "
            f"executable file. A script needs its interpreter in front: python {shlex.join(job.command)}"
        )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _offer_horovod() -> None:
    """Let programs that import Horovod first of all find the stand-in, where Horovod is not installed."""
    if folder_of_horovod() == STAND_INS / "horovod":
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(STAND_INS))))


if __name__ == "__main__":
    main()
