"""Runs the instances of one host under torch's elastic launcher, and ends them when poprun is gone.

It gets `popdist.run.messages` on stdin, whose end means that poprun has ended, and writes such messages to stdout.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import signal
import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, BinaryIO

from ipu_model.cores import CoreWatch
from ipu_model.errors import Error
from popdist.run.messages import Job, MeetingPort, Message, Trouble, Writer, parse

if TYPE_CHECKING:
    from popdist.run.elastic import Output

# How long the instances and torch's launcher have to end once poprun has.
_LAST_RESORT_SECONDS = 10


def main() -> None:
    # Both streams are for messages: instances get an empty stdin, and prints of libraries go to stderr.
    poprun, writer = _Poprun(os.fdopen(os.dup(0), "rb")), Writer(os.fdopen(os.dup(1), "wb"))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    job = poprun.messages.get()
    if not isinstance(job, Job):
        return
    if not job.plan.talkative:
        logging.disable(logging.CRITICAL)
    try:
        _work(job, poprun, writer)
    except (Error, OSError, RuntimeError) as error:
        writer.send(Trouble(error.message if isinstance(error, Error) else str(error)))
        poprun.wait_for_its_end()


class _Poprun:
    """The messages on stdin. Their end ends this process and the instances, unless it has nothing left to do."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.messages: SimpleQueue[Message | None] = SimpleQueue()
        self._idle, self._ended = threading.Event(), threading.Event()
        self.output: Output | None = None
        threading.Thread(target=self._read, daemon=True).start()

    def wait_for_its_end(self) -> None:
        self._idle.set()
        self._ended.wait()

    def _read(self) -> None:
        for line in self._stream:
            self.messages.put(parse(line))
        self._ended.set()
        self.messages.put(None)
        if self._idle.is_set():
            return
        # Torch's launcher ends the instances then, unless its thread cannot hear: it may wait for other agents.
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_LAST_RESORT_SECONDS if self.output is not None and self.output.temporary is not None else 1)
        if self.output is not None:
            self.output.clean_up()
        os._exit(1)


def _work(job: Job, poprun: _Poprun, writer: Writer) -> None:
    _check(job)
    # Only now, so that mistakes are told at once: this takes two seconds.
    from ipu_model.instances import TCPStore
    from popdist.run.elastic import launch, output_of

    os.environ.update(job.plan.shared)
    own_cores = CoreWatch().cores().at_once // job.plan.topology.instances_per_host
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, own_cores)))
    store = None
    if job.host == 0:
        # Where agents and instances meet: at a free port, which poprun tells all agents.
        store = TCPStore(job.plan.address_of(0), 0, is_master=True, wait_for_workers=False, multi_tenant=True)
        writer.send(MeetingPort(store.port))
    meeting = poprun.messages.get()
    if not isinstance(meeting, MeetingPort):
        return
    poprun.output = output_of(job, meeting.port, writer)
    launch(job, meeting.port, poprun.output, writer)
    # Instances on other hosts may still meet at the first host's store: it goes when poprun says so.
    poprun.wait_for_its_end()
    del store


def _check(job: Job) -> None:
    name, command = job.plan.hosts[job.host].name, job.plan.command
    try:
        os.chdir(job.folder)
    except OSError as error:
        raise Error(
            f"host {name} has no folder {job.folder} ({error.strerror}). Programs run in the folder in which you "
            "started poprun, so this folder must exist on every host"
        ) from None
    if shutil.which(command[0], path=job.plan.shared.get("PATH", os.environ.get("PATH"))) is None:
        raise Error(
            f"program {command[0]!r} was not found on host {name}: it is neither a command in PATH nor an "
            f"executable file. A script needs its interpreter in front: python {shlex.join(command)}"
        )


if __name__ == "__main__":
    main()
