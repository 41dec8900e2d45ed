"""Fill a folder with every wheel that requirements.txt asks for, so that a room can install without a network.

`make wheelhouse` runs it; `make setup WHEELHOUSE=FOLDER` installs from the folder. The pins come first, without
what they ask for. Then the metadata of the wheels at hand are followed, as pip will follow them at the other end:
what they still lack is fetched until nothing does. So torch's CUDA packages, which requirements.txt leaves to torch
(see tools/lock.py), come exactly when the wheel of torch at hand asks for them, and a wheelhouse that is said to be
complete is complete. The two distributions of this project are not in it: they are installed in place, and the
setuptools that this takes is one of the pins.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from setup_errors import SetupError, explain
from wheel_closure import missing, wheels_in
from wheel_targets import PLATFORMS, Target, target_of

ROOT = Path(__file__).resolve().parents[1]
MIB = 2**20


def pins(text: str) -> list[Requirement]:
    """Return the pinned requirements of a requirements file, without the folders it installs in place."""
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    try:
        return [Requirement(line) for line in lines if line and not line.startswith("-")]
    except InvalidRequirement as problem:
        raise SetupError(f"requirements.txt: {problem}") from problem


def download(requirements: list[Requirement], folder: Path, target: Target) -> None:
    """Fetch the wheels of `requirements`, whose markers hold, and nothing that they ask for."""
    command = [sys.executable, "-m", "pip", "download", "--dest", str(folder), "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar", "off", *target.pip_options()]
    # The markers were evaluated for the target already; pip would evaluate them for the Python it runs on.
    command += [f"{each.name}{each.specifier}" for each in requirements]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if line.lstrip().startswith("Downloading") and "MB)" in line and "metadata" not in line:
                print(f"  {line.strip()}", flush=True)
    if process.returncode != 0:
        raise explain(said, process.returncode)


def fill(folder: Path, requirements: list[Requirement], target: Target) -> int:
    """Fill `folder` until nothing is missing for `target`, and return how many wheels it takes."""
    folder.mkdir(parents=True, exist_ok=True)
    needed = [each for each in requirements if target.applies(each)]
    before: list[str] = []
    while lacking := missing(needed, wheels_in(folder, target), target):
        names = sorted(str(each) for each in lacking)
        if names == before:
            raise SetupError(f"the package index gave no wheel that fits {target.name} for {', '.join(names)}")
        print(f"wheelhouse: fetching {len(names)} wheels for {target.name}", flush=True)
        download(lacking, folder, target)
        before = names
    return len(wheels_in(folder, target))


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Fetch every wheel of requirements.txt into a folder.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "wheelhouse")
    parser.add_argument("--platform", choices=sorted(PLATFORMS), help="of the learners' machines (default: this one's)")
    parser.add_argument("--python-version", metavar="3.N", help="of the learners' machines (default: this one's)")
    return parser.parse_args(arguments)


def main() -> int:
    parsed = parse_arguments()
    try:
        target = target_of(parsed.platform, parsed.python_version)
        requirements = pins((ROOT / "requirements.txt").read_text(encoding="utf-8"))
        count = fill(parsed.folder, requirements, target)
    except KeyboardInterrupt:
        print("\nwheelhouse: interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    except (SetupError, OSError) as error:
        print(f"wheelhouse: {error}", file=sys.stderr)
        return 1
    size = sum(wheel.stat().st_size for wheel in parsed.folder.glob("*.whl"))
    print(
        f"wheelhouse: {parsed.folder} is complete for {target.name}: {count} wheels fit it; {size / MIB:.0f} MiB in all"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
