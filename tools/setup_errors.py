"""What went wrong in an installation, in one line for the person who started it."""

from __future__ import annotations

import platform
import re
import tempfile


class SetupError(Exception):
    """A set-up that failed; `nothing_changed` says that the environment is as it was before."""

    def __init__(self, message: str, *, nothing_changed: bool = False) -> None:
        super().__init__(message)
        self.nothing_changed = nothing_changed


NO_SPACE = re.compile(r"No space left on device|Errno 28|Disk quota exceeded")
NO_NETWORK = re.compile(
    r"NewConnectionError|NameResolutionError|Temporary failure in name resolution|Network is unreachable"
    r"|Failed to establish a new connection|Connection refused|Connection reset|Connection broken"
    r"|ConnectTimeout|ReadTimeoutError|Read timed out|Max retries exceeded|RemoteDisconnected|IncompleteRead"
    r"|ProxyError|SSLError"
)
NO_BUILD = re.compile(r"No matching distribution found for (\S+)")
NO_INDEX = re.compile(r"^.* -m pip install .*--no-index", re.MULTILINE)  # the command itself, which opens its log
NO_PERMISSION = re.compile(r"\[Errno 13\] Permission denied: (\S+)")
NOT_IMPORTABLE = re.compile(r"^((?:ModuleNotFound|Import|OS)Error: .*)$", re.MULTILINE)
LAST_ERROR = re.compile(r"^(?:ERROR|Error|error): (.*)$", re.MULTILINE)


def explain(said: str, returncode: int) -> SetupError:
    """Return the one-line explanation of a failed step, from all that it said and how it ended."""
    if NO_SPACE.search(said):
        return SetupError(
            f"no disk space left, here or in the temporary folder {tempfile.gettempdir()}: free some, or name"
            " another temporary folder, as in TMPDIR=/folder make lab"
        )
    if NO_NETWORK.search(said):
        # pip downloads everything before it installs anything.
        return SetupError(
            "cannot reach the package index: no network, or a proxy or firewall in between; try again later",
            nothing_changed=True,
        )
    if match := NO_BUILD.search(said):
        here = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
        if NO_INDEX.search(said):
            return SetupError(
                f"the wheelhouse has no {match[1]} for {here}: make wheelhouse, on a machine like this one with a"
                " network, fetches what is missing",
                nothing_changed=True,
            )
        return SetupError(f"the package index has no {match[1]} for {here}", nothing_changed=True)
    if match := NO_PERMISSION.search(said):
        return SetupError(f"no permission to write {match[1]}")
    if returncode < 0:
        return SetupError(f"the installation was stopped by signal {-returncode} (9: probably out of memory)")
    if match := NOT_IMPORTABLE.search(said):
        return SetupError(f"the packages are installed, but do not work here: {match[1]}")
    errors = LAST_ERROR.findall(said)
    return SetupError(errors[-1] if errors else f"a step of the installation ended with code {returncode}")
