"""Starts a JupyterLab of its own on a free loopback port, with a token and with nobody's settings."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STARTUP_SECONDS = 120
TRIES = 20
SETTINGS = {
    # No question about news, and no window on the notebook: every cell is in the page, seen or not.
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},
}


@dataclass(frozen=True)
class LabServer:
    """A running JupyterLab: `url` ends in "/", `folder` is what it shows."""

    url: str
    token: str
    folder: Path

    def notebook_url(self, name: str) -> str:
        """Return the address that opens a notebook in an empty workspace."""
        return f"{self.url}lab/tree/{name}?token={self.token}&reset"

    def kernels_are_idle(self) -> bool:
        """Tell whether there is a kernel and none is running a cell."""
        idle, _ = self.idle_and_last_activity()
        return idle

    def last_activity(self) -> str:
        """Return when a kernel last said anything, as text: it changes with every message."""
        _, activity = self.idle_and_last_activity()
        return activity

    def idle_and_last_activity(self) -> tuple[bool, str]:
        """Return what `kernels_are_idle` and `last_activity` do, from one answer of the server."""
        kernels = self.kernels()
        idle = bool(kernels) and all(kernel["execution_state"] == "idle" for kernel in kernels)
        return idle, max((str(kernel["last_activity"]) for kernel in kernels), default="")

    def kernels(self) -> list[dict[str, Any]]:
        """Return what the server says about each of its kernels."""
        found: list[dict[str, Any]] = json.loads(self.ask("GET", "api/kernels"))
        return found

    def stop_kernels(self) -> None:
        """End every kernel, as a learner does with Shut Down All Kernels."""
        for kernel in self.kernels():
            # One that ended by itself in the meantime is answered with "not found".
            with contextlib.suppress(urllib.error.HTTPError):
                self.ask("DELETE", f"api/kernels/{kernel['id']}")

    def ask(self, method: str, path: str) -> bytes:
        """Send one request to the server and return what it answers."""
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(f"{self.url}{path}", headers=headers, method=method)
        for _ in range(TRIES - 1):
            # While a kernel starts or ends, the server may fail to list it.
            with contextlib.suppress(urllib.error.HTTPError):
                return answer_to(request)
            time.sleep(0.5)
        return answer_to(request)


def answer_to(request: urllib.request.Request) -> bytes:
    """Return the body of the server's answer."""
    with urllib.request.urlopen(request, timeout=30) as answer:
        content: bytes = answer.read()
    return content


def private_environment(home: Path) -> dict[str, str]:
    """Return an environment in which Jupyter reads and writes below `home` only."""
    for name, values in SETTINGS.items():
        file = home / "settings" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values), encoding="utf-8")
    folders = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    private = {name: str(home / folder) for name, folder in folders.items()}
    return {**os.environ, **private, "IPU_COURSE_PROGRESS": str(home / "progress.json")}


def wait_for_address(process: subprocess.Popen[bytes], home: Path) -> str:
    """Return the address that the server notes once it has its port."""
    noted = home / "runtime" / f"jpserver-{process.pid}.json"
    deadline = time.monotonic() + STARTUP_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if noted.exists() and (text := noted.read_text(encoding="utf-8")).endswith("}"):
            return str(json.loads(text)["url"])
        time.sleep(0.2)
    log = (home / "server.log").read_text(encoding="utf-8", errors="replace")
    raise RuntimeError(f"JupyterLab did not start:\n{log[-3000:]}")


@contextmanager
def running_lab(folder: Path, home: Path, start: Sequence[str] = ()) -> Iterator[LabServer]:
    """Run JupyterLab on `folder`, its own files below `home`, until the block ends.

    `start` is the command line that starts JupyterLab on `folder`, after Python's `-m`, where it is not its own.
    """
    token = secrets.token_hex(16)
    own = ("jupyterlab", "--no-browser", "--allow-root", f"--ServerApp.root_dir={folder}")
    command = [sys.executable, "-m", *(start or own), "--ip=127.0.0.1", f"--IdentityProvider.token={token}"]
    # The system gives each server a port of its own: two that look for a free one from the same number
    # on can both find the first. Kernels need none where there are files to meet at.
    command += ["--ServerApp.port=0"]
    command += ["--KernelManager.transport=ipc"] if os.name == "posix" else []
    # The page then has `jupyterapp`, whose commands choose the theme and put the side bar away.
    command += ["--LabApp.expose_app_in_browser=True"]
    environment = private_environment(home)
    folder.mkdir(parents=True, exist_ok=True)
    with (home / "server.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield LabServer(wait_for_address(process, home), token, folder)
    finally:
        # A polite end, so that the server ends its kernels and their loader workers too.
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
