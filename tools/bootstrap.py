"""Bring .venv up to date with requirements.txt, in seconds when there is nothing to do.

Standard library only: this runs before anything is installed. Three files in .venv carry the state:

* `.setup-stamp`: what was installed last (Python, folder, hash of the requirements); written at the end.
* `.setup-unfinished`: an installation began. A .venv that still has it was interrupted and is made anew.
* `setup.log`: all that pip said.

WHEELHOUSE in the environment names a folder of wheels (made by `make wheelhouse`) to install from, without a network.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from setup_errors import SetupError, explain

ROOT = Path(__file__).resolve().parents[1]
INPUTS = ("requirements.txt", "pyproject.toml", "ipu_model/pyproject.toml", "tools/bootstrap.py")
# Our own two are only looked for: an error in their code is for the tests to tell.
IMPORTS = """
import importlib.util, torch, torchvision, jupyterlab
for name in ("poptorch", "ipu_model", "ipu_course"):
    if importlib.util.find_spec(name) is None:
        raise ImportError(f"{name} was not installed")
"""
GIB = 2**30
# On Linux: 5.6 GiB in .venv, and the 2.8 of the download twice, in pip's cache and in the temporary folder.
COMFORTABLE_SPACE = (12 if sys.platform == "linux" else 4) * GIB
LEAST_SPACE = 2 * GIB
# JupyterLab asks every newcomer whether it may fetch news; a room without network should not see that.
NOTIFICATIONS = "@jupyterlab/apputils-extension:notification"
LAB_DEFAULTS = {NOTIFICATIONS: {"fetchNews": "false", "checkForUpdates": False}}


def wanted_stamp(root: Path) -> dict[str, str]:
    """Return what an up-to-date .venv says about itself."""
    digest = hashlib.sha256()
    for name in INPUTS:
        digest.update((root / name).read_bytes())
    python = "{}.{}.{}".format(*sys.version_info[:3])
    # pip writes absolute paths into .venv, so a project folder that was moved or copied needs a new one.
    return {
        "python": python,
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
    run([base, "-m", "venv", str(venv)], venv / "setup.log")


def run(command: list[str], log: Path) -> None:
    """Run a command, everything it says going to the log and the telling lines to the screen."""
    with log.open("a", encoding="utf-8", errors="replace") as file:
        file.write(f"$ {shlex.join(command)}\n")
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                file.write(line)
                file.flush()
                show_progress(line)
        if process.returncode != 0:
            said = log.read_text(encoding="utf-8", errors="replace").rpartition("\n$ ")[2]
            raise explain(said, process.returncode)


def show_progress(line: str) -> None:
    """Show the lines of pip's that take time: large downloads, and the unpacking at the end."""
    if match := re.search(r"(?:Downloading|Using cached) ([^\s/]+)-\S+ \((\d{2,})(?:\.\d+)? MB\)", line):
        print(f"  {match[1]} ({match[2]} MB)", flush=True)
    elif line.startswith("Installing collected packages") and (count := line.count(",")) > 0:
        print(f"  unpacking {count + 1} packages", flush=True)


def pinned_setuptools(root: Path) -> str:
    """Return the requirement of setuptools, the one package needed to install our own two."""
    text = (root / "requirements.txt").read_text(encoding="utf-8")
    match = re.search(r"^setuptools==\S+", text, re.MULTILINE)
    if match is None:
        raise SetupError("requirements.txt does not pin setuptools: run make lock")
    return match[0]


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


def install(root: Path, venv: Path, wheelhouse: Path | None) -> None:
    """Install requirements.txt into .venv, from the wheelhouse if there is one, and try the imports."""
    python, log = str(venv / "bin" / "python"), venv / "setup.log"
    quiet = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off", *pip_sources(wheelhouse)]
    pip = [python, "-m", "pip", "install", *quiet]
    # No build isolation: with setuptools here, a later run needs no network if a pyproject.toml changed.
    run([*pip, pinned_setuptools(root)], log)
    run([*pip, "--no-build-isolation", "-r", "requirements.txt"], log)
    run([python, "-c", IMPORTS], log)
    overrides = venv / "share" / "jupyter" / "lab" / "settings" / "overrides.json"
    overrides.parent.mkdir(parents=True, exist_ok=True)
    overrides.write_text(json.dumps(LAB_DEFAULTS), encoding="utf-8")


def check_space(folder: Path) -> None:
    """Refuse when nothing can fit, and warn when it may not."""
    free = shutil.disk_usage(folder).free
    if free < LEAST_SPACE:
        raise SetupError(f"{free / GIB:.1f} GiB of disk space free in {folder}; the packages need several")
    if free < COMFORTABLE_SPACE:
        comfortable = COMFORTABLE_SPACE // GIB
        print(f"setup: {free / GIB:.0f} GiB of disk space free; {comfortable} are comfortable", flush=True)


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
    anew = must_be_made_anew(venv, wanted)
    print(f"setup: {'making' if anew else 'updating'} {venv} with Python {wanted['python']}", flush=True)
    if anew:
        check_space(root)
        source = "on Linux it downloads 3 GB" if wheelhouse is None else f"takes the wheels in {wheelhouse}"
        print(f"setup: once only; takes minutes; {source} and fills 6 GB", flush=True)
        make_venv(venv)
    unfinished.touch()
    try:
        install(root, venv, wheelhouse)
    except SetupError as error:
        if anew or not error.nothing_changed:
            raise
        unfinished.unlink()
        raise SetupError(f"{error}; or use .venv as it was before: make OFFLINE=1 lab") from error
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
        log = venv / "setup.log"
        print(f"setup: {error}{f' (full log: {log})' if log.exists() else ''}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
