"""Bring .venv up to date with requirements.txt, in no time when there is nothing to do.

Standard library only: this runs before anything is installed. Two files in .venv carry the state:

* `.setup-stamp`: what was installed last (Python, folder, hash of the requirements); written at the end.
* `.setup-unfinished`: an installation began. A .venv that still has it was interrupted and is made anew.

WHEELHOUSE in the environment names a folder of wheels (made by `make wheelhouse`) to install from, without a network.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INPUTS = ("requirements.txt", "pyproject.toml", "ipu_model/pyproject.toml", "tools/bootstrap.py")
# Our own two are only looked for: an error in their code is for the tests to tell.
IMPORTS = """
import importlib.util, torch, torchvision, jupyterlab
for name in ("poptorch", "ipu_model", "ipu_course"):
    if importlib.util.find_spec(name) is None:
        raise ImportError(f"{name} was not installed")
"""
# JupyterLab asks every newcomer whether it may fetch news; a room without network should not see that.
NOTIFICATIONS = "@jupyterlab/apputils-extension:notification"
LAB_DEFAULTS = {NOTIFICATIONS: {"fetchNews": "false", "checkForUpdates": False}}


class SetupError(Exception):
    """A set-up that failed, in one line for the person who started it."""


def wanted_stamp(root: Path) -> dict[str, str]:
    """Return what an up-to-date .venv says about itself."""
    digest = hashlib.sha256()
    for name in INPUTS:
        digest.update((root / name).read_bytes())
    # pip writes absolute paths into .venv, so a project folder that was moved or copied needs a new one.
    return {
        "python": "{}.{}.{}".format(*sys.version_info[:3]),
        "platform": sysconfig.get_platform(),
        "root": str(root),
        "inputs": digest.hexdigest(),
    }


def read_stamp(venv: Path) -> dict[str, str]:
    """Return the stamp of the last finished installation, empty if there is none."""
    try:
        stamp = json.loads((venv / ".setup-stamp").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def must_be_made_anew(venv: Path, wanted: dict[str, str]) -> bool:
    """Tell whether a .venv can only be thrown away: none, interrupted, moved, or of another Python."""
    if not (venv / "bin" / "python").exists() or (venv / ".setup-unfinished").exists():
        return True
    stamp = read_stamp(venv)
    if not stamp:
        raise SetupError(f"{venv} was not made by this Makefile: remove it or give it another name")
    same_minor = stamp.get("python", "").split(".")[:2] == wanted["python"].split(".")[:2]
    return not same_minor or any(stamp.get(key) != wanted[key] for key in ("platform", "root"))


def make_venv(venv: Path) -> None:
    """Make an empty virtual environment, marked as unfinished."""
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        package = "python{}.{}-venv".format(*sys.version_info[:2])
        raise SetupError(f"{sys.executable} has no venv module (Debian, Ubuntu: apt-get install {package})")
    base = getattr(sys, "_base_executable", None) or sys.executable
    shutil.rmtree(venv, ignore_errors=True)
    venv.mkdir()
    (venv / ".setup-unfinished").touch()
    run([base, "-m", "venv", str(venv)])


def run(command: list[str]) -> None:
    """Run a command that speaks for itself."""
    code = subprocess.run(command, cwd=ROOT).returncode
    if code != 0:
        how = f"was stopped by signal {-code} (9: probably out of memory)" if code < 0 else "failed"
        raise SetupError(f"a step of the installation {how}; what it said stands above")


def chosen_wheelhouse(root: Path) -> Path | None:
    """Return the folder of wheels that WHEELHOUSE names (relative to the project's), None if it names none."""
    name = os.environ.get("WHEELHOUSE", "").strip()
    if not name:
        return None
    folder = (root / Path(name).expanduser()).resolve()
    if not any(folder.glob("*.whl")):
        raise SetupError(f"WHEELHOUSE={name}: no wheel in {folder}; `make wheelhouse` fills a folder, with a network")
    return folder


def pip_sources(wheelhouse: Path | None) -> list[str]:
    """Return the options that tell pip where packages are: nowhere but in the wheelhouse, if there is one."""
    return [] if wheelhouse is None else ["--no-index", "--find-links", str(wheelhouse)]


def pip_install(venv: Path, wheelhouse: Path | None, *what: str) -> None:
    """Install into .venv, from the wheelhouse if there is one."""
    command = [str(venv / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    run([*command, *pip_sources(wheelhouse), *what])


def install(root: Path, venv: Path, wheelhouse: Path | None) -> None:
    """Install requirements.txt into .venv, and try the imports."""
    setuptools = re.search(r"^setuptools==\S+", (root / "requirements.txt").read_text(encoding="utf-8"), re.MULTILINE)
    if setuptools is None:
        raise SetupError("requirements.txt does not pin setuptools: run make lock")
    # No build isolation: with setuptools here, a later run needs no network if a pyproject.toml changed.
    pip_install(venv, wheelhouse, setuptools[0])
    pip_install(venv, wheelhouse, "--no-build-isolation", "-r", "requirements.txt")
    run([str(venv / "bin" / "python"), "-c", IMPORTS])
    overrides = venv / "share" / "jupyter" / "lab" / "settings" / "overrides.json"
    overrides.parent.mkdir(parents=True, exist_ok=True)
    overrides.write_text(json.dumps(LAB_DEFAULTS), encoding="utf-8")


def try_update(venv: Path, wheelhouse: Path | None) -> None:
    """See that everything can be had before anything is changed: a room without a network keeps what it has."""
    try:
        pip_install(venv, wheelhouse, "--quiet", "--dry-run", "--no-build-isolation", "-r", "requirements.txt")
    except SetupError as error:
        raise SetupError(f"{error}; or use .venv as it is: make OFFLINE=1 lab") from error


@contextmanager
def alone(venv: Path) -> Iterator[None]:
    """Let one set-up run at a time: a second one waits, then finds the work done."""
    with Path(__file__).open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print(f"setup: another one is at work on {venv}; waiting for it", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def bring_up_to_date(root: Path, venv: Path) -> None:
    """Make .venv match requirements.txt, or raise a SetupError."""
    wanted = wanted_stamp(root)
    unfinished = venv / ".setup-unfinished"
    if read_stamp(venv) == wanted and not unfinished.exists():
        return
    wheelhouse = chosen_wheelhouse(root)
    if must_be_made_anew(venv, wanted):
        source = "on Linux it downloads 3 GB" if wheelhouse is None else f"takes the wheels in {wheelhouse}"
        print(f"setup: making {venv}; once only; takes minutes; {source} and fills 6 GB", flush=True)
        make_venv(venv)
    else:
        print(f"setup: updating {venv}", flush=True)
        try_update(venv, wheelhouse)
    unfinished.touch()
    install(root, venv, wheelhouse)
    (venv / ".setup-stamp").write_text(json.dumps(wanted), encoding="utf-8")
    unfinished.unlink()
    print("setup: done", flush=True)


def main() -> int:
    venv = ROOT / ".venv"
    try:
        with alone(venv):
            bring_up_to_date(ROOT, venv)
    except KeyboardInterrupt:
        print("\nsetup: interrupted; the same command starts it again", file=sys.stderr)
        return 130
    except (SetupError, OSError) as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
