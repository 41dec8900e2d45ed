"""What poprun and its agents tell one another: one JSON object a line."""

from __future__ import annotations

import json
import signal
import threading
from dataclasses import asdict, dataclass
from typing import IO, Any


@dataclass(frozen=True)
class Job:
    """What the agent of one host is to start; `variables` holds each of its instances' own ones.

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
    shared: dict[str, str]
    variables: list[dict[str, str]]
    talkative: bool = False


@dataclass(frozen=True)
class End:
    """How an instance of this host came to its end: exit code, or minus the number of a signal.

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


class Writer:
    """Sends messages, from several threads."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def send(self, kind: str, **values: Any) -> None:
        """Send one message; its reader may be gone."""
        line = json.dumps({"kind": kind, **values}).encode() + b"\n"
        with self._lock:
            self._stream.write(line)
            self._stream.flush()


def parse(line: bytes) -> dict[str, Any] | None:
    """Return a message, or `None` for a line that is none: remote shells may print what they like."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) and "kind" in message else None


def job_message(job: Job) -> dict[str, Any]:
    """Return a job as the values of a message."""
    return asdict(job)
