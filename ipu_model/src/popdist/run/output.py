"""What torch's launcher gives an instance: its variables, a temporary folder, and pipes instead of log files."""

from __future__ import annotations

import os
import re
import selectors
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Sequence

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

from popdist.run.instance import ALIVE

_LINE_END = re.compile(rb"\n|\r(?!\n)")
_TAIL = 20


class Output(LogsSpecs):
    """Gives each instance its own variables and two pipes; `emit(local index, stream, line)` gets the lines.

    `gone(local index)` is called when an instance has ended, with all the children that hold what it has open.

    A carriage return ends a line too, so that progress bars move. Temporary files are in a folder of the run's own,
    because programs that are ended cannot remove theirs.
    """

    def __init__(
        self,
        variables: Sequence[dict[str, str]],
        emit: Callable[[int, str, bytes], None],
        gone: Callable[[int], None] = lambda local: None,
    ) -> None:
        super().__init__()
        self._gone = gone
        self._lives: dict[int, int] = {}
        self._variables = variables
        self._pipes: dict[int, LinePipe] = {}
        self._emit = emit
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = os.pipe()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._tails: dict[int, deque[bytes]] = {}

    @property
    def has_instances(self) -> bool:
        """Whether instances were, or are being, started."""
        return self._temporary is not None

    @property
    def root_log_dir(self) -> str:
        """Torch's log folder: there is none."""
        return ""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Complete the environment of each instance and say where it writes; called by torch's launcher once."""
        self._temporary = tempfile.TemporaryDirectory(prefix="poprun-", ignore_cleanup_errors=True)
        paths: dict[str, dict[int, str]] = {"stdout": {}, "stderr": {}}
        for local, environment in envs.items():
            environment.update(self._variables[local], TORCHELASTIC_ERROR_FILE="", TMPDIR=self._temporary.name)
            environment[ALIVE] = self._watched_life(self._temporary.name, local)
            for stream, found in paths.items():
                pipe = LinePipe(local, stream)
                self._pipes[pipe.reader] = pipe
                self._selector.register(pipe.reader, selectors.EVENT_READ)
                found[local] = f"/dev/fd/{pipe.writer}"
        self._thread.start()
        return LogsDest(paths["stdout"], paths["stderr"], error_files=dict.fromkeys(envs, ""))

    def _watched_life(self, folder: str, local: int) -> str:
        """Return the path of what an instance holds open as long as it lives: reading it ends with the instance."""
        path = os.path.join(folder, f"alive-{local}")
        os.mkfifo(path)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._lives[reader] = local
        self._selector.register(reader, selectors.EVENT_READ)
        return path

    def finish(self) -> None:
        """Hand out everything that has been written, then stop reading: a program's own children may hold a pipe."""
        os.write(self._waker, b".")
        if self._thread.is_alive():
            self._thread.join()
        self.clean_up()

    def clean_up(self) -> None:
        """Remove the temporary folder."""
        if self._temporary is not None:
            self._temporary.cleanup()

    def last_lines(self, local: int) -> bytes:
        """Return the last lines that an instance wrote to its stderr."""
        return b"".join(self._tails.get(local, ()))

    def _read(self) -> None:
        while True:
            ready = [key.fd for key, _ in self._selector.select()]
            for descriptor in ready:
                if descriptor in self._lives:
                    self._selector.unregister(descriptor)
                    os.close(descriptor)
                    self._gone(self._lives.pop(descriptor))
                elif descriptor != self._wake:
                    self._take(self._pipes[descriptor])
            if ready == [self._wake]:
                break
        for pipe in self._pipes.values():
            self._hand_out(pipe, pipe.rest())

    def _take(self, pipe: LinePipe) -> None:
        data = os.read(pipe.reader, 2**16)
        if not data:
            self._selector.unregister(pipe.reader)
        for line in pipe.lines(data):
            self._hand_out(pipe, line)

    def _hand_out(self, pipe: LinePipe, line: bytes) -> None:
        if line.strip(b"\r"):
            if pipe.stream == "stderr":
                self._tails.setdefault(pipe.local, deque(maxlen=_TAIL)).append(line)
            self._emit(pipe.local, pipe.stream, line)


class LinePipe:
    """One stream of one instance, cut into lines."""

    def __init__(self, local: int, stream: str) -> None:
        self.local, self.stream = local, stream
        self.reader, self.writer = os.pipe()
        self._rest = b""

    def lines(self, data: bytes) -> list[bytes]:
        """Return the lines that are complete with this data, each with its end."""
        text = self._rest + data
        lines, start = [], 0
        for end in _LINE_END.finditer(text):
            # A carriage return at the very end may be the first half of a line end.
            if end.group() == b"\r" and end.end() == len(text):
                break
            lines.append(text[start : end.end()])
            start = end.end()
        self._rest = text[start:]
        return lines

    def rest(self) -> bytes:
        """Return what was written after the last line end."""
        rest, self._rest = self._rest, b""
        return rest
