"""What poprun and the agents of its hosts tell one another: a JSON array a line, of a kind and its values."""

from __future__ import annotations

import json
import signal
import threading
from dataclasses import asdict, dataclass, field
from typing import IO


@dataclass(frozen=True)
class Job:
    """To an agent, first of all: what to start; `variables` holds each of its instances' own ones.

    Port 0 lets the agent of host 0 choose a free one; the other agents are told in a second message.
    """

    host: int
    hosts: int
    name: str
    address: str
    meeting_address: str
    port: int
    instances: int
    command: list[str]
    folder: str
    shared: dict[str, str] = field(default_factory=dict)
    variables: list[dict[str, str]] = field(default_factory=list)
    talkative: bool = False


@dataclass(frozen=True)
class MeetingPort:
    """From the agent of host 0, and on to the others: the port at which instances meet."""

    port: int


@dataclass(frozen=True)
class Line:
    """From an agent: what an instance wrote to `stdout` or `stderr`."""

    index: int
    stream: str
    text: str


@dataclass(frozen=True)
class Trouble:
    """From an agent: why it cannot start its instances."""

    text: str


@dataclass(frozen=True)
class Failure:
    """From an agent: how an instance failed, by its exit code, or minus the number of a signal.

    `consequence` tells that it only ended because another one had.
    """

    index: int
    status: int
    consequence: bool = False

    @property
    def stopped(self) -> bool:
        """Whether it was asked to end, as all are once one has failed."""
        return self.status == -signal.SIGTERM

    @property
    def exit_status(self) -> int:
        """The exit status that a shell shows for it."""
        return self.status if self.status >= 0 else 128 - self.status


@dataclass(frozen=True)
class Finished:
    """From an agent: all its instances have ended."""


Message = Job | MeetingPort | Line | Trouble | Failure | Finished
_KINDS = {kind.__name__: kind for kind in (Job, MeetingPort, Line, Trouble, Failure, Finished)}


class Writer:
    """Sends messages, from several threads."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        """Send one message; raise `OSError` if its reader is gone."""
        line = json.dumps([type(message).__name__, asdict(message)]).encode() + b"\n"
        with self._lock:
            self._stream.write(line)
            self._stream.flush()


def parse(line: bytes) -> Message | None:
    """Return a message, or `None` for a line that is none: remote shells may print what they like."""
    try:
        kind, values = json.loads(line)
        return _KINDS[kind](**values)
    except (ValueError, TypeError, KeyError):
        return None
