"""One host's instances under torch's elastic launcher."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from datetime import timedelta

from torch.distributed import DistNetworkError
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from ipu_model.errors import Error
from ipu_model.instances.gloo import TCPStore
from ipu_model.instances.group import ENDED, note_end
from popdist.run import instance
from popdist.run.messages import Failure, Finished, Job, Line, Writer
from popdist.run.output import Output

# How long instances have to end by themselves after SIGTERM when poprun stops them.
_SHUTDOWN_SECONDS = 5
# How long the agents of all hosts have to find one another.
_RENDEZVOUS_SECONDS = 300

# How long to try to note the end of an instance: lines of others wait meanwhile.
_NOTE_TIMEOUT = timedelta(seconds=5)


def meeting_place(job: Job) -> TCPStore:
    """Start the store where agents and instances meet, on a free port unless one is asked for.

    Raises:
        Error: the port is taken.
    """
    try:
        return TCPStore(job.meeting_address, job.port, is_master=True, wait_for_workers=False, multi_tenant=True)
    except DistNetworkError as error:
        if "EADDRINUSE" not in str(error):
            raise
        raise Error(
            f"port {job.port} of host {job.name} (MASTER_PORT) is taken by another program. Unset MASTER_PORT to have "
            "a free port chosen, or set it to another one"
        ) from error


def output_of(job: Job, port: int, writer: Writer) -> Output:
    """Return what sends on the lines that the instances of a job write, and notes their ends where instances meet."""
    first = job.host * job.instances

    def emit(local: int, stream: str, line: bytes) -> None:
        writer.send(Line(first + local, stream, line.decode("utf-8", "surrogateescape")))

    def gone(local: int) -> None:
        if job.hosts * job.instances == 1:
            return
        # At the end of a run that failed nobody may be there to tell.
        with contextlib.suppress(RuntimeError):
            store = TCPStore(job.meeting_address, port, is_master=False, wait_for_workers=False, timeout=_NOTE_TIMEOUT)
            note_end(store, first + local)

    return Output(job.variables, emit, gone)


def launch(job: Job, port: int, output: Output, writer: Writer) -> None:
    """Run the instances of this host to their end, and tell poprun how."""
    # Torch replaces ${local_rank} in arguments; doubled, a dollar sign stays what it is.
    command = [word.replace("$", "$$") for word in (instance.__file__, str(os.getpid()), *job.command)]
    failures = {}
    try:
        elastic_launch(_configuration(job, port, output), sys.executable)("-I", "-S", *command)
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
        consequence = ENDED.encode() in output.last_lines(index - job.host * job.instances)
        writer.send(Failure(index, failure.exitcode, consequence))
    writer.send(Finished())


def _configuration(job: Job, port: int, output: Output) -> LaunchConfig:
    return LaunchConfig(
        min_nodes=job.hosts,
        max_nodes=job.hosts,
        nproc_per_node=job.instances,
        run_id="poprun",
        rdzv_backend="static",
        rdzv_endpoint=f"{job.meeting_address}:{port}",
        rdzv_configs={"rank": job.host, "timeout": _RENDEZVOUS_SECONDS},
        local_addr=job.address,
        max_restarts=0,
        logs_specs=output,
        shutdown_timeout=_SHUTDOWN_SECONDS,
    )
