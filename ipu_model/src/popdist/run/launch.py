"""poprun's side of a run: starts an agent for each host, shows what instances write, ends all when one fails."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

from ipu_model.errors import Error
from popdist.environment import variables_of
from popdist.run.ends import choose_cause, explain
from popdist.run.frames import End, Job, Writer, job_message, parse
from popdist.run.hosts import LOOPBACK, Host, start_agent
from popdist.topology import Topology

# What an instance tells the group about its own host (see ipu_model.instances.joining).
_HOST_ADDRESS = "POPDIST_HOST_ADDRESS"
# Agents need a moment to end their instances before they are ended themselves.
_AGENT_SECONDS = 20.0
# How long to wait for the true failure when one host reports only that another instance has ended.
_CAUSE_SECONDS = 3.0
# A password cannot be asked for: poprun's stdin is no terminal of the agents'.
DEFAULT_SHELL = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Plan:
    """A run: what is started where. `shared` are variables for all instances; port 0 stands for a free one."""

    topology: Topology
    hosts: tuple[Host, ...]
    command: tuple[str, ...]
    shared: Mapping[str, str] = field(default_factory=dict)
    port: int = 0
    remote_shell: tuple[str, ...] = DEFAULT_SHELL
    only_output_from: int | None = None
    talkative: bool = False


class Interrupted(Exception):
    """A signal asked poprun to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = signal.Signals(number)


def run(plan: Plan) -> int:
    """Run all instances to their end and return the exit status: 0, or that of the instance that failed first."""
    agents = [_Agent(host) for host in plan.hosts]
    events: SimpleQueue[tuple[int, dict[str, Any] | None]] = SimpleQueue()
    screen = _Screen(plan.only_output_from)
    message, status = "", 0
    with _signals_raised():
        try:
            for index, agent in enumerate(agents):
                agent.start(plan.remote_shell, lambda message, index=index: events.put((index, message)))
                agent.send("job", **job_message(job_of(plan, index, os.environ)))
            message, status = _supervise(plan, agents, events, screen)
        except Interrupted as interruption:
            message, status = f"ended by {interruption.signal.name}", 128 + interruption.signal
        except Error as error:
            message, status = error.message, 1
        finally:
            with _signals_ignored():
                _end(agents, events, screen)
    if status:
        print(f"poprun: {message.rstrip('.')}. All instances have been stopped.", file=sys.stderr, flush=True)
    return status


def job_of(plan: Plan, host: int, environment: Mapping[str, str]) -> Job:
    """Return what the agent of a host is told."""
    alone = len(plan.hosts) == 1
    address = LOOPBACK if alone else plan.hosts[host].address
    return Job(
        host=host,
        hosts=len(plan.hosts),
        name=plan.hosts[host].name,
        address=address,
        meeting_address=LOOPBACK if alone else plan.hosts[0].address,
        port=plan.port,
        instances=plan.topology.instances_per_host,
        command=list(plan.command),
        folder=os.getcwd(),
        shared=dict(plan.shared),
        variables=[
            {**variables_of(plan.topology, instance), _HOST_ADDRESS: address}
            for instance in plan.topology.on_host(host)
        ],
        talkative=plan.talkative,
    )


def _supervise(
    plan: Plan, agents: Sequence[_Agent], events: SimpleQueue[tuple[int, dict[str, Any] | None]], screen: _Screen
) -> tuple[str, int]:
    """Handle messages until all hosts have finished or one reports a failure; return message and exit status."""
    running, ends, deadline = set(range(len(agents))), [], None
    while running:
        try:
            host, message = events.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
        except Empty:
            break
        if message is None:
            return agents[host].farewell(), 1
        if message["kind"] == "line":
            screen.show(message)
        elif message["kind"] == "port":
            for agent in agents[1:]:
                agent.send("port", port=message["port"])
        elif message["kind"] == "trouble":
            return message["text"], 1
        elif message["kind"] == "ended":
            running.discard(host)
            ends += [End(**end) for end in message["ends"]]
            if any(not end.consequence and not end.stopped for end in ends):
                break
            deadline = time.monotonic() + _CAUSE_SECONDS if ends else None
    if not ends:
        return "", 0
    cause = choose_cause(ends)
    return explain(plan.topology.instance(cause.index), cause), cause.exit_status


def _end(agents: Sequence[_Agent], events: SimpleQueue[tuple[int, dict[str, Any] | None]], screen: _Screen) -> None:
    """End all agents, and with them their instances; show what is still to be shown."""
    for agent in agents:
        agent.dismiss()
    deadline = time.monotonic() + _AGENT_SECONDS
    for agent in agents:
        agent.wait(max(0.0, deadline - time.monotonic()))
    with contextlib.suppress(Empty):
        while True:
            _, message = events.get_nowait()
            if message is not None and message["kind"] == "line":
                screen.show(message)


class _Agent:
    """The process that runs one host's instances, here or at the other end of a remote shell."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._process: subprocess.Popen[bytes] | None = None
        self._said: deque[str] = deque(maxlen=20)
        self._readers: list[threading.Thread] = []

    def start(self, remote_shell: Sequence[str], receive: Any) -> None:
        """Start it; `receive` gets its messages, and `None` when there are no more."""
        self._process = start_agent(self._host, remote_shell)
        self._readers = [
            threading.Thread(target=self._read_messages, args=(receive,), daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def send(self, kind: str, **values: Any) -> None:
        """Send a message; an agent that has ended is found out about otherwise."""
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            Writer(self._process.stdin).send(kind, **values)

    def farewell(self) -> str:
        """Describe the end of an agent that did not report the end of its instances."""
        assert self._process is not None
        self._process.wait()
        self._readers[1].join(timeout=1.0)
        said = "".join(f"\n  {line}" for line in self._said)
        how = f"ended with exit code {self._process.returncode}"
        if self._host.local:
            return f"the process that runs the instances of host {self._host.name} {how}{said}"
        return (
            f"host {self._host.name} cannot be reached, or lacks this Python ({sys.executable}) with ipu-model: the "
            f"remote shell {how}{said}"
        )

    def dismiss(self) -> None:
        """Tell the agent to end: its stdin is closed."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def wait(self, seconds: float) -> None:
        """Wait for the agent's end, and make it end after that time."""
        if self._process is None:
            return
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for reader in self._readers:
            reader.join(timeout=1.0)

    def _read_messages(self, receive: Any) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = parse(line)
            if message is None:
                self._said.append(line.decode(errors="replace").rstrip())
            else:
                receive(message)
        receive(None)

    def _read_errors(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._said.append(line.decode(errors="replace").rstrip())


class _Screen:
    """Shows the lines of instances, tagged as Open MPI tags them; `only` hides all others but one."""

    def __init__(self, only: int | None) -> None:
        self._only = only

    def show(self, message: Mapping[str, Any]) -> None:
        """Write one line to the stream that the instance wrote it to."""
        if self._only is not None and message["index"] != self._only:
            return
        stream = sys.stdout if message["stream"] == "stdout" else sys.stderr
        text = tagged(message["index"], message["stream"], message["text"])
        stream.buffer.write(text.encode("utf-8", "surrogateescape"))
        stream.flush()


def tagged(index: int, stream: str, text: str) -> str:
    """Return a line with the tag of its instance and stream, and with an end."""
    end = "" if text.endswith(("\n", "\r")) else "\n"
    return f"[1,{index}]<{stream}>:{text}{end}"


@contextlib.contextmanager
def _signals_raised() -> Iterator[None]:
    """Raise `Interrupted` in the body when a signal asks for the end."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted(number)

    before = [signal.signal(number, interrupt) for number in _SIGNALS]
    try:
        yield
    finally:
        for number, handler in zip(_SIGNALS, before):
            signal.signal(number, handler)


@contextlib.contextmanager
def _signals_ignored() -> Iterator[None]:
    before = [signal.signal(number, signal.SIG_IGN) for number in _SIGNALS]
    try:
        yield
    finally:
        for number, handler in zip(_SIGNALS, before):
            signal.signal(number, handler)
