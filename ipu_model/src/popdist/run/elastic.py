"""One host's instances under torch's elastic launcher, and what they write: pipes stand where it has log files."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import sys
import tempfile
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from datetime import timedelta

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from ipu_model.instances import ENDED, HOST_ADDRESS, TCPStore, note_end
from popdist.environment import variables_of
from popdist.run import instance
from popdist.run.messages import Failure, Finished, Job, Line, Writer

# How long instances have to end by themselves after SIGTERM when poprun stops them.
_SHUTDOWN_SECONDS = 5
# How long the agents of all hosts have to find one another.
_RENDEZVOUS_SECONDS = 300
# How long to try to note the end of an instance: lines of others wait meanwhile.
_NOTE_TIMEOUT = timedelta(seconds=5)
# A carriage return at the very end may be the first half of a line end.
_LINE = re.compile(rb".*?(?:\n|\r(?!\n|\Z))", re.DOTALL)
_TAIL = 20


def output_of(job: Job, port: int, writer: Writer) -> Output:
    topology, address = job.plan.topology, job.plan.address_of(0)
    first = job.host * topology.instances_per_host
    own = {HOST_ADDRESS: job.plan.address_of(job.host)}
    variables = [{**variables_of(topology, instance), **own} for instance in topology.on_host(job.host)]

    def emit(local: int, stream: str, line: bytes) -> None:
        writer.send(Line(first + local, stream, line))

    def gone(local: int) -> None:
        if topology.num_instances == 1:
            return
        # At the end of a run that failed nobody may be there to tell.
        with contextlib.suppress(RuntimeError):
            store = TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=_NOTE_TIMEOUT)
            note_end(store, first + local)

    return Output(variables, emit, gone)


def launch(job: Job, port: int, output: Output, writer: Writer) -> None:
    # Torch replaces ${local_rank} in arguments; doubled, a dollar sign stays what it is.
    command = [word.replace("$", "$$") for word in (instance.__file__, str(os.getpid()), *job.plan.command)]
    failures = {}
    configuration = LaunchConfig(
        min_nodes=len(job.plan.hosts),
        max_nodes=len(job.plan.hosts),
        nproc_per_node=job.plan.topology.instances_per_host,
        run_id="poprun",
        rdzv_backend="static",
        rdzv_endpoint=f"{job.plan.address_of(0)}:{port}",
        rdzv_configs={"rank": job.host, "timeout": _RENDEZVOUS_SECONDS},
        local_addr=job.plan.address_of(job.host),
        max_restarts=0,
        logs_specs=output,
        shutdown_timeout=_SHUTDOWN_SECONDS,
    )
    try:
        elastic_launch(configuration, sys.executable)("-I", "-S", *command)
    except ChildFailedError as error:
        failures = error.failures
    except SignalException:
        output.finish()
        sys.exit(1)
    for failure in failures.values():
        # What an instance has started itself: each of them leads a process group.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(failure.pid, signal.SIGKILL)
    output.finish()
    for index, failure in sorted(failures.items()):
        consequence = ENDED.encode() in b"".join(output.tails[index - job.host * job.plan.topology.instances_per_host])
        writer.send(Failure(index, failure.exitcode, consequence))
    writer.send(Finished())


class Output(LogsSpecs):
    """Gives each instance its own variables and two pipes; `emit(local index, stream, line)` gets the lines.

    `gone(local index)` is called when an instance has ended, with all the children that hold what it has open.
    Temporary files are in a folder of the run's own, because programs that are ended cannot remove theirs.
    """

    def __init__(
        self,
        variables: Sequence[dict[str, str]],
        emit: Callable[[int, str, bytes], None],
        gone: Callable[[int], None] = lambda local: None,
    ) -> None:
        super().__init__()
        self._variables, self._emit, self._gone = variables, emit, gone
        self._pipes: list[LinePipe] = []
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = os.pipe()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self.temporary: tempfile.TemporaryDirectory[str] | None = None
        self.tails: dict[int, deque[bytes]] = defaultdict(lambda: deque(maxlen=_TAIL))

    root_log_dir = ""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Complete the environment of each instance and say where it writes; called by torch's launcher once."""
        self.temporary = tempfile.TemporaryDirectory(prefix="poprun-", ignore_cleanup_errors=True)
        paths: dict[str, dict[int, str]] = {"stdout": {}, "stderr": {}}
        for local, environment in envs.items():
            environment.update(self._variables[local], TORCHELASTIC_ERROR_FILE="", TMPDIR=self.temporary.name)
            # What an instance holds open as long as it lives: reading it ends with the instance.
            alive = os.path.join(self.temporary.name, f"alive-{local}")
            os.mkfifo(alive)
            self._selector.register(os.open(alive, os.O_RDONLY | os.O_NONBLOCK), selectors.EVENT_READ, local)
            environment[instance.ALIVE] = alive
            for stream, paths_of_stream in paths.items():
                pipe = LinePipe(local, stream)
                self._pipes.append(pipe)
                self._selector.register(pipe.reader, selectors.EVENT_READ, pipe)
                paths_of_stream[local] = f"/dev/fd/{pipe.writer}"
        self._thread.start()
        return LogsDest(paths["stdout"], paths["stderr"], error_files=dict.fromkeys(envs, ""))

    def finish(self) -> None:
        """Hand out everything that has been written, then stop reading: a program's own children may hold a pipe."""
        os.write(self._waker, b".")
        if self._thread.is_alive():
            self._thread.join()
        self.clean_up()

    def clean_up(self) -> None:
        if self.temporary is not None:
            self.temporary.cleanup()

    def _read(self) -> None:
        while True:
            ready = [key for key, _ in self._selector.select()]
            for descriptor, data in ((key.fd, key.data) for key in ready):
                if isinstance(data, LinePipe):
                    self._take(data)
                elif data is not None:
                    self._selector.unregister(descriptor)
                    os.close(descriptor)
                    self._gone(data)
            if [key.fd for key in ready] == [self._wake]:
                break
        for pipe in self._pipes:
            self._hand_out(pipe, pipe.rest)

    def _take(self, pipe: LinePipe) -> None:
        data = os.read(pipe.reader, 2**16)
        if not data:
            self._selector.unregister(pipe.reader)
        for line in pipe.lines(data):
            self._hand_out(pipe, line)

    def _hand_out(self, pipe: LinePipe, line: bytes) -> None:
        if line.strip(b"\r"):
            if pipe.stream == "stderr":
                self.tails[pipe.local].append(line)
            self._emit(pipe.local, pipe.stream, line)


class LinePipe:
    def __init__(self, local: int, stream: str) -> None:
        self.local, self.stream = local, stream
        self.reader, self.writer = os.pipe()
        self.rest = b""

    def lines(self, data: bytes) -> list[bytes]:
        text = self.rest + data
        lines = _LINE.findall(text)
        self.rest = text[sum(map(len, lines)) :]
        return lines
