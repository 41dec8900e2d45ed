"""The command `poprun`: it starts an agent for each host, shows what instances write, ends all when one fails."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from queue import Empty, SimpleQueue
from types import FrameType
from typing import IO

from ipu_model.errors import Error
from ipu_model.whole_files import write_whole
from popdist.environment import Instance, as_table, divide
from popdist.run.messages import (
    DEFAULT_SHELL,
    LOOPBACK,
    Failure,
    Finished,
    Host,
    Job,
    Line,
    MeetingPort,
    Message,
    Plan,
    Trouble,
    Writer,
    parse,
)
from popdist.run.options import Request, exported, read

_THIS_MACHINE = Host("localhost", LOOPBACK, local=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a program as the command line says; return the exit status, 2 for a mistake in the command line."""
    try:
        request = read(sys.argv[1:] if arguments is None else arguments)
        plan = plan_of(request, os.environ)
        if request.export_config:
            write_whole(request.export_config, exported(request).encode())
    except (Error, OSError) as error:
        print(f"poprun: {error.message if isinstance(error, Error) else error}", file=sys.stderr)
        return 2
    _describe(request, plan)
    return run(plan)


def plan_of(request: Request, environment: Mapping[str, str]) -> Plan:
    if not request.program:
        raise Error("no program was given. Write it after the options: poprun --num-instances 2 python program.py")
    names = (_THIS_MACHINE.name,) if request.host is None else parse_hosts(request.host)
    topology = divide(names, request.num_instances, request.num_replicas, request.ipus_per_replica)
    only = request.only_output_from_instance
    if only is not None and not 0 <= only < topology.num_instances:
        raise Error(
            f"--only-output-from-instance {only}: there are {topology.num_instances} instances, from 0 to "
            f"{topology.num_instances - 1}."
        )
    return Plan(
        topology,
        (_THIS_MACHINE,) if request.host is None else find(names),
        request.program,
        shared=shared_variables(request, environment),
        remote_shell=request.mpi.remote_shell or DEFAULT_SHELL,
        only_output_from=only,
        talkative=request.verbosity > 1,
    )


def shared_variables(request: Request, environment: Mapping[str, str]) -> dict[str, str]:
    shared = {name: environment[name] for name in FORWARDED if name in environment}
    for name, value in request.mpi.variables.items():
        if value is not None:
            shared[name] = value
        elif name in environment:
            shared[name] = environment[name]
        else:
            print(f"poprun: -x {name}: this variable is not set here, so it is not passed on", file=sys.stderr)
    if request.executable_cache_path:
        shared["POPTORCH_CACHE_DIR"] = request.executable_cache_path
    return shared


def _describe(request: Request, plan: Plan) -> None:
    if request.print_topology:
        print(as_table(plan.topology), flush=True)
    if not request.verbosity:
        return
    lines = [f"{name} has no effect on the IPU Model" for name in request.without_effect]
    lines += [f"{text} is an argument of mpirun that has no effect here" for text in request.mpi.ignored]
    for index, host in enumerate(plan.hosts):
        instances = plan.topology.on_host(index)
        way = "on this machine" if host.local else "through the remote shell"
        numbers = f"instances {instances[0].index} to {instances[-1].index}"
        lines.append(f"host {host.name} ({host.address}, {way}): {numbers}")
    for line in lines:
        print(f"poprun: {line}", file=sys.stderr, flush=True)


def parse_hosts(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if "" in names:
        raise Error(f"--host {text!r}: a name is empty. Write the hosts as --host name1,name2.")
    for position, name in enumerate(names):
        if name in names[:position]:
            raise Error(
                f"--host {text}: {name} is given twice. Name each host once: --num-instances says how many instances "
                "there are, and they are divided evenly."
            )
    return names


def find(names: Sequence[str]) -> tuple[Host, ...]:
    """Look up the addresses; refuse unknown names, two names of one, and a first host that the others cannot reach."""
    hosts = tuple(map(_find, names))
    for position, host in enumerate(hosts):
        for other in hosts[:position]:
            if other.address == host.address:
                raise Error(
                    f"--host: {other.name} and {host.name} are the same machine ({host.address}). Name each host once."
                )
    first = hosts[0]
    far = [host.name for host in hosts if not host.local]
    if first.local and far and ipaddress.ip_address(first.address).is_loopback:
        raise Error(
            f"--host: {far[0]} has to reach the first host, and {first.name} is {first.address}, an address inside "
            "this machine. Name this machine by the address or name that the others know."
        )
    return hosts


def _find(name: str) -> Host:
    try:
        address = str(socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise Error(
            f"--host: {name} is unknown ({error.strerror}). Name hosts by an address, or by a name that this machine "
            "and the other hosts can look up."
        ) from None
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
            local = True
        except OSError:
            local = False
    if not local and ipaddress.ip_address(address).is_loopback:
        raise Error(f"--host: {name} is {address}, a loopback address that this machine does not have.")
    return Host(name, address, local)


# Agents need a moment to end their instances before they are ended themselves.
_AGENT_SECONDS = 20.0
# How long to wait for the true failure when one host reports only that another instance has ended.
_CAUSE_SECONDS = 3.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_HINTS = {
    signal.SIGKILL: "it was killed from outside, often because memory ran out",
    signal.SIGSEGV: "it crashed",
    signal.SIGABRT: "it crashed",
    signal.SIGBUS: "it crashed, often because shared memory ran out",
}
# As Open MPI does: these reach other hosts without being asked for.
FORWARDED = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")


class Interrupted(Exception):
    """A signal, its only argument, asked poprun to end."""


_Events = SimpleQueue[tuple[int, Message | None]]


def run(plan: Plan) -> int:
    """Run all instances to their end and return the exit status: 0, or that of the instance that failed first."""
    events: _Events = SimpleQueue()
    agents: list[_Agent] = []
    message, status = "", 0
    with _on_signals(_interrupt):
        try:
            for index, host in enumerate(plan.hosts):
                agents.append(_Agent(index, host, plan.remote_shell, events))
                agents[-1].send(Job(plan, index, os.getcwd()))
            message, status = _supervise(plan, agents, events)
        except Interrupted as interruption:
            (number,) = interruption.args
            message, status = f"ended by {signal.Signals(number).name}", 128 + number
        except Error as error:
            message, status = error.message, 1
        finally:
            with _on_signals(signal.SIG_IGN):
                _end(plan, agents, events)
    if status:
        print(f"poprun: {message.rstrip('.')}. All instances have been stopped.", file=sys.stderr, flush=True)
    return status


def _supervise(plan: Plan, agents: Sequence[_Agent], events: _Events) -> tuple[str, int]:
    """Handle messages until all hosts have finished or one reports a failure; return message and exit status."""
    running = set(range(len(agents)))
    failures: list[Failure] = []
    deadline = None
    while running:
        try:
            host, message = events.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
        except Empty:
            break
        if message is None:
            return agents[host].farewell(), 1
        if isinstance(message, Trouble):
            return message.text, 1
        if isinstance(message, Line):
            _show(message, plan.only_output_from)
        elif isinstance(message, MeetingPort):
            for agent in agents:
                agent.send(message)
        elif isinstance(message, Failure):
            failures.append(message)
        elif isinstance(message, Finished):
            running.discard(host)
            if any(not failure.consequence and not failure.stopped for failure in failures):
                break
            deadline = time.monotonic() + _CAUSE_SECONDS if failures else None
    if not failures:
        return "", 0
    cause = choose_cause(failures)
    return explain(plan.topology.instance(cause.index), cause), cause.exit_status


def choose_cause(failures: Sequence[Failure]) -> Failure:
    """Return the failure that made the others end: those that only followed, or that were stopped, come last."""
    return min(failures, key=lambda failure: (failure.stopped, failure.consequence, failure.index))


def explain(instance: Instance, failure: Failure) -> str:
    if failure.status >= 0:
        return f"{instance.description} ended with exit code {failure.status}; its last output is above"
    try:
        number = signal.Signals(-failure.status)
    except ValueError:
        return f"{instance.description} was ended by signal {-failure.status}"
    hint = _HINTS.get(number)
    return f"{instance.description} was ended by {number.name}" + (f": {hint}" if hint else "")


def _end(plan: Plan, agents: Sequence[_Agent], events: _Events) -> None:
    for agent in agents:
        agent.dismiss()
    deadline = time.monotonic() + _AGENT_SECONDS
    for agent in agents:
        agent.wait(max(0.0, deadline - time.monotonic()))
    with contextlib.suppress(Empty):
        while True:
            _, message = events.get_nowait()
            if isinstance(message, Line):
                _show(message, plan.only_output_from)


class _Agent:
    """The process that runs one host's instances; its messages come as events with its index, `None` at their end."""

    def __init__(self, index: int, host: Host, remote_shell: Sequence[str], events: _Events) -> None:
        self._index, self._host, self._events = index, host, events
        command = agent_command(host, remote_shell)
        self._noise = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the agent runs
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._noise, start_new_session=True
            )
        except OSError as error:
            raise Error(
                f"host {host.name} cannot be reached: {command[0]} cannot be run ({error.strerror}). "
                'Install ssh, or name another remote shell: --mpi-global-args "--mca plm_rsh_agent COMMAND".'
            ) from None
        assert self._process.stdin is not None
        self._writer = Writer(self._process.stdin)
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def send(self, message: Message) -> None:
        """Send a message; an agent that has ended is found out about otherwise."""
        with contextlib.suppress(OSError):
            self._writer.send(message)

    def farewell(self) -> str:
        how = f"ended with exit code {self._process.wait()}"
        self._noise.seek(0)
        said = "".join(f"\n  {line}" for line in self._noise.read().decode(errors="replace").splitlines()[-20:])
        if self._host.local:
            return f"the process that runs the instances of host {self._host.name} {how}{said}"
        return (
            f"host {self._host.name} cannot be reached, or lacks this Python ({sys.executable}) with ipu-model: the "
            f"remote shell {how}{said}"
        )

    def dismiss(self) -> None:
        with contextlib.suppress(OSError):
            self._writer.close()

    def wait(self, seconds: float) -> None:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(timeout=1.0)
        self._noise.close()

    def _read(self, lines: IO[bytes]) -> None:
        for line in lines:
            message = parse(line)
            if message is not None:
                self._events.put((self._index, message))
        self._events.put((self._index, None))


def agent_command(host: Host, remote_shell: Sequence[str]) -> list[str]:
    """Return the command that starts the agent of a host; on others Python is at the same place as here."""
    agent = [sys.executable, "-m", "popdist.run.agent"]
    if host.local:
        return agent
    forwarded = [f"{name}={os.environ[name]}" for name in FORWARDED if name in os.environ]
    return [*remote_shell, host.name, shlex.join(["env", *forwarded, *agent])]


def _show(line: Line, only: int | None) -> None:
    if only in (None, line.index):
        stream = sys.stdout if line.stream == "stdout" else sys.stderr
        stream.buffer.write(tagged(line))
        stream.flush()


def tagged(line: Line) -> bytes:
    """Return a line with the tag of its instance and stream, as Open MPI writes it, and with an end."""
    end = b"" if line.text.endswith((b"\n", b"\r")) else b"\n"
    return f"[1,{line.index}]<{line.stream}>:".encode() + line.text + end


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise Interrupted(number)


@contextlib.contextmanager
def _on_signals(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
    before = [signal.signal(number, handler) for number in _SIGNALS]
    try:
        yield
    finally:
        for number, earlier in zip(_SIGNALS, before, strict=True):
            signal.signal(number, earlier)
