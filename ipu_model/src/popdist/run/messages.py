"""What is run where, and what poprun and the agents of its hosts tell one another: a JSON object a line."""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO

import msgspec

from popdist.environment import Topology

# A password cannot be asked for: poprun's stdin is no terminal of the agents'.
DEFAULT_SHELL = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20")
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Host:
    """A machine of the run: its name as given, its address, and whether it is the machine that poprun runs on."""

    name: str
    address: str
    local: bool


@dataclass(frozen=True)
class Plan:
    """A run: what is started where. `shared` are variables for all instances."""

    topology: Topology
    hosts: tuple[Host, ...]
    command: tuple[str, ...]
    shared: Mapping[str, str] = field(default_factory=dict)
    remote_shell: tuple[str, ...] = DEFAULT_SHELL
    only_output_from: int | None = None
    talkative: bool = False

    def address_of(self, host: int) -> str:
        return LOOPBACK if len(self.hosts) == 1 else self.hosts[host].address


class Job(msgspec.Struct, frozen=True, tag=True):
    """To an agent, first of all: the run, which of its hosts the agent is on, and the folder to run in."""

    plan: Plan
    host: int
    folder: str


class MeetingPort(msgspec.Struct, frozen=True, tag=True):
    """From the agent of host 0, and on to all of them: the port at which instances meet."""

    port: int


class Line(msgspec.Struct, frozen=True, tag=True):
    """From an agent: what an instance wrote to `stdout` or `stderr`."""

    index: int
    stream: str
    text: bytes


class Trouble(msgspec.Struct, frozen=True, tag=True):
    """From an agent: why it cannot start its instances."""

    text: str


class Failure(msgspec.Struct, frozen=True, tag=True):
    """From an agent: an instance's exit code or minus its signal, and whether it failed because another one had."""

    index: int
    status: int
    consequence: bool = False

    @property
    def stopped(self) -> bool:
        """Whether it was asked to end, as all are once one has failed."""
        return self.status == -signal.SIGTERM

    @property
    def exit_status(self) -> int:
        return self.status if self.status >= 0 else 128 - self.status


class Finished(msgspec.Struct, frozen=True, tag=True):
    """From an agent: all its instances have ended."""


Message = Job | MeetingPort | Line | Trouble | Failure | Finished
_DECODER: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


class Writer:
    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        with self._lock:
            self._stream.write(msgspec.json.encode(message) + b"\n")
            self._stream.flush()

    def close(self) -> None:
        self._stream.close()


def parse(line: bytes) -> Message | None:
    """Return a message, or `None` for a line that is none: remote shells may print what they like."""
    try:
        return _DECODER.decode(line)
    except msgspec.DecodeError:
        return None
