"""Fill a folder with our own wheels and all that requirements.txt asks for: a room can then install without a network.

`make wheelhouse` runs it; `make setup WHEELHOUSE=FOLDER` installs from the folder. uv works out what the pins ask for
in turn on the learners' machines, torch's CUDA packages on Linux among it, and pip fetches exactly that. The wheels of
this project's two distributions are built into the folder, too: a room without clones installs them from there.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from project_address import project_address
from wheels import DISTRIBUTIONS, build

ROOT = Path(__file__).resolve().parents[1]
# Each by uv's name for it, and with the tags that its wheels may have: glibc 2.28 (2018) is what torch is built for.
GLIBC = ("manylinux2014", *(f"manylinux_2_{minor}" for minor in range(5, 29)))
PLATFORMS = {
    "linux-x86_64": ("x86_64-manylinux_2_28", [f"{glibc}_x86_64" for glibc in GLIBC]),
    "linux-aarch64": ("aarch64-manylinux_2_28", [f"{glibc}_aarch64" for glibc in GLIBC]),
    "macos-arm64": ("aarch64-apple-darwin", ["macosx_14_0_arm64"]),
}
# A pin may hold from some patch release of Python on. The folder is for every one, so the first and one beyond the last
# are both looked at.
PATCHES = ("", ".99")
HERE = f"{'macos' if sys.platform == 'darwin' else sys.platform}-{platform.machine()}"
# uv does not read pip's names for the package indices; among several it is to choose as pip does.
INDICES = {"PIP_INDEX_URL": "UV_DEFAULT_INDEX", "PIP_EXTRA_INDEX_URL": "UV_INDEX"}


def asked_for(machine: str, python: str) -> str:
    """Return every package that the pins need on such a machine, with its version, one a line."""
    pins = [line for line in (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines() if line[:2] != "-e"]
    named = {theirs: os.environ[ours] for ours, theirs in INDICES.items() if ours in os.environ}
    environment = {**os.environ, **named, "UV_INDEX_STRATEGY": "unsafe-best-match", "MACOSX_DEPLOYMENT_TARGET": "14.0"}
    command = [sys.executable, "-m", "uv", "pip", "compile", "-", "--quiet", "--no-header", "--no-annotate"]
    command += ["--only-binary=:all:", f"--python-platform={PLATFORMS[machine][0]}", f"--python-version={python}"]
    done = subprocess.run(
        command, env=environment, input="\n".join(pins), check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def download(packages: str, folder: Path, machine: str, python: str) -> None:
    """Fetch the wheels of exactly these packages; what is in the folder already is not fetched again."""
    with tempfile.TemporaryDirectory() as scratch:
        listed = Path(scratch) / "packages.txt"
        listed.write_text(packages, encoding="utf-8")
        command = [sys.executable, "-m", "pip", "download", f"--dest={folder}", f"--requirement={listed}", "--no-deps"]
        command += ["--only-binary=:all:", f"--python-version={python}", "--implementation=cp"]
        subprocess.run([*command, *(f"--platform={tag}" for tag in PLATFORMS[machine][1])], check=True)


def add_own_wheels(folder: Path) -> None:
    """Build this project's two distributions and put their wheels into the folder.

    Raises ``RuntimeError`` if they cannot be built, ``ValueError`` for a wrong address of the project.
    """
    address = project_address()
    with tempfile.TemporaryDirectory() as scratch:
        for distribution in DISTRIBUTIONS:
            for file in build(distribution, Path(scratch), address):
                if file.suffix == ".whl":
                    shutil.copy(file, folder)


def main(arguments: list[str] | None = None) -> int:
    """Fill the folder and say what is in it."""
    parser = argparse.ArgumentParser(description="Fetch every wheel of requirements.txt into a folder.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "wheelhouse")
    parser.add_argument("--platform", choices=PLATFORMS, default=HERE, help="of the learners' machines")
    parser.add_argument("--python-version", metavar="3.N", default="{}.{}".format(*sys.version_info[:2]))
    parsed = parser.parse_args(arguments)
    if parsed.platform not in PLATFORMS:
        parser.error(f"there are no wheels for {HERE}: choose a --platform (PLATFORM=...) of {', '.join(PLATFORMS)}")
    try:
        for patch in PATCHES:
            python = parsed.python_version + patch
            download(asked_for(parsed.platform, python), parsed.folder, parsed.platform, python)
        add_own_wheels(parsed.folder)
    except KeyboardInterrupt:
        print("\nwheelhouse: interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    except subprocess.CalledProcessError as failed:
        print(f"wheelhouse: {failed.cmd[2]} failed; what it said stands above", file=sys.stderr)
        return 1
    except (RuntimeError, ValueError) as problem:
        print(f"wheelhouse: {problem}", file=sys.stderr)
        return 1
    wheels = list(parsed.folder.glob("*.whl"))
    size = sum(wheel.stat().st_size for wheel in wheels) / 2**20
    print(
        f"wheelhouse: {parsed.folder} is complete for Python {parsed.python_version} on {parsed.platform}:"
        f" {len(wheels)} wheels, {size:.0f} MiB"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
