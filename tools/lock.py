"""Write requirements.txt: every package of the course's environment, pinned, for all Pythons and platforms.

`make lock` runs it after a range in a pyproject.toml changed. It needs uv, which resolves for all platforms
at once; a package whose newest version does not know Python 3.10 gets a line for each version, with markers.

requirements-companions.txt, for `make companions`, has what PopTorch's companion packages need beside these, and
requirements-site.txt what `make site` needs.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "requirements.txt"
COMPANIONS_TARGET = ROOT / "requirements-companions.txt"
SITE_TARGET = ROOT / "requirements-site.txt"
OLDEST_PYTHON = "3.10"
EXTRAS = ("lab", "programs", "test", "lint")
COMPANIONS, SITE = "companions", "site"

# What torch asks for on Linux only. torch pins these itself, and a learner whose pip is set up for a CPU-only
# build of torch must not get several GB of CUDA libraries because of us.
BROUGHT_BY_TORCH = re.compile(r"(nvidia|cuda)-[\w-]+|triton")

HEADER = """\
# The whole environment of the course, pinned. Made by `make lock` from the ranges in both pyproject.toml.
# Left out on purpose: the CUDA packages that torch asks for on Linux (torch pins those itself).
# The two paths are relative to this folder, so stand here: pip install -r requirements.txt
-e ./ipu_model
-e .

"""
COMPANIONS_HEADER = """\
# Pins of PopTorch's companion packages and of their dependencies that requirements.txt lacks. Made by `make lock`.
# `make companions` installs them without dependencies, so the versions in requirements.txt win even if a companion asks
# for an older one.

"""

SITE_HEADER = """\
# Pins of what builds the site and requirements.txt lacks. Made by `make lock`; `make site` installs it into .venv.

"""


def resolve(*sources: str) -> list[str]:
    """Return one pinned requirement a line, as uv resolves them for all platforms."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--universal", "--python-version", OLDEST_PYTHON]
    command += ["--quiet", "--no-header", "--no-annotate", *sources]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return [line for line in done.stdout.splitlines() if "==" in line and is_ours(line)]


def name_of(requirement: str) -> str:
    """Return the package that a pinned requirement names."""
    return requirement.split("==")[0]


def is_ours(requirement: str) -> bool:
    """Tell whether the lock should name a requirement, rather than leave it to torch."""
    return not BROUGHT_BY_TORCH.fullmatch(name_of(requirement))


def write(target: Path, header: str, requirements: list[str]) -> None:
    """Write the pins below a header, and say how many there are."""
    target.write_text(header + "\n".join(requirements) + "\n", encoding="utf-8")
    print(f"{target.name}: {len(requirements)} pins")


def main() -> int:
    extras = [f"--extra={extra}" for extra in EXTRAS]
    requirements = resolve(*extras, "pyproject.toml", "ipu_model/pyproject.toml")
    write(TARGET, HEADER, requirements)
    write_beside(COMPANIONS_TARGET, COMPANIONS_HEADER, COMPANIONS)
    write_beside(SITE_TARGET, SITE_HEADER, SITE)
    return 0


def write_beside(target: Path, header: str, extra: str) -> None:
    """Write the pins of an extra, except for packages that requirements.txt pins."""
    lines = TARGET.read_text(encoding="utf-8").splitlines()
    pinned = {name_of(line) for line in lines if "==" in line}
    found = resolve(f"--override={TARGET.name}", f"--extra={extra}", "pyproject.toml")
    write(target, header, [line for line in found if name_of(line) not in pinned])


if __name__ == "__main__":
    sys.exit(main())
