"""Running `poprun` from tests, and looking for processes that it left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

HERE = Path(__file__).parent
TIMEOUT_IN_S = 240
MARK = "POPRUN_TEST_MARK"


class Started:
    """A `poprun` that runs; everything it starts carries a mark in its environment, and its temporary folder is ours.

    `PATH` begins with this Python's folder, so that `python` is this one.
    """

    def __init__(self, arguments: list[str], more: Mapping[str, str]) -> None:
        self.mark = uuid4().hex
        # Not pytest's: sockets of multiprocessing must have short paths.
        self._folder = tempfile.TemporaryDirectory(prefix="t-")
        self.temporary = Path(self._folder.name)
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        environment = {name: value for name, value in os.environ.items() if name not in ("MASTER_ADDR", "MASTER_PORT")}
        own = {"PATH": path, "TMPDIR": self._folder.name, "OMP_NUM_THREADS": "1", MARK: self.mark}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "popdist.run", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**environment, **own, **more},
        )  # fmt: skip

    def first_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def finish(self) -> subprocess.CompletedProcess[str]:
        """Wait for its end; a run that does not end fails the test, and is ended."""
        try:
            out, err = self.process.communicate(timeout=TIMEOUT_IN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return subprocess.CompletedProcess(self.process.args, self.process.returncode, out, err)

    def _is_of(self, folder: Path) -> bool:
        try:
            marked = f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes().split(b"\0")
            return marked and (folder / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
        except OSError:
            return False

    def wait_until_gone(self) -> None:
        """Return when no process of the run is left; fail if that never happens."""
        end = time.monotonic() + TIMEOUT_IN_S
        while left := [folder for folder in Path("/proc").iterdir() if folder.name.isdigit() and self._is_of(folder)]:
            assert time.monotonic() < end, left
            time.sleep(0.05)

    def assert_nothing_left(self) -> None:
        self.wait_until_gone()
        assert sorted(path.name for path in self.temporary.iterdir()) == []


def poprun(*arguments: str, **more: str) -> Started:
    """Start `poprun` with these arguments, and with these variables besides those that are here."""
    return Started(list(arguments), more)
