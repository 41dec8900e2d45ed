"""What poprun and the agents of its hosts tell one another: a JSON object a line."""

from __future__ import annotations

import signal
import threading
from typing import IO

import msgspec


class Job(msgspec.Struct, frozen=True, tag=True):
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
    command: tuple[str, ...]
    folder: str
    shared: dict[str, str]
    variables: tuple[dict[str, str], ...]
    talkative: bool


class MeetingPort(msgspec.Struct, frozen=True, tag=True):
    """From the agent of host 0, and on to the others: the port at which instances meet."""

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
        return self.status if self.status >= 0 else 128 - self.status


class Finished(msgspec.Struct, frozen=True, tag=True):
    """From an agent: all its instances have ended."""


Message = Job | MeetingPort | Line | Trouble | Failure | Finished
_DECODER: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


class Writer:
    """Sends messages, from several threads."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        with self._lock:
            self._stream.write(msgspec.json.encode(message) + b"\n")
            self._stream.flush()


def parse(line: bytes) -> Message | None:
    """Return a message, or `None` for a line that is none: remote shells may print what they like."""
    try:
        return _DECODER.decode(line)
    except msgspec.DecodeError:
        return None
