"""Write requirements.txt: every package of the course's environment, pinned, for all Pythons and platforms.

`make lock` runs it after a range in a pyproject.toml changed. It needs uv, which resolves for all platforms
at once; a package whose newest version does not know Python 3.10 gets a line for each version, with markers.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "requirements.txt"
OLDEST_PYTHON = "3.10"
EXTRAS = ("lab", "vision", "test", "lint")

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


def resolve() -> list[str]:
    """Return one pinned requirement a line, as uv resolves them for all platforms."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--universal", "--python-version", OLDEST_PYTHON]
    command += ["--quiet", "--no-header", "--no-annotate", *(f"--extra={extra}" for extra in EXTRAS)]
    command += ["pyproject.toml", "ipu_model/pyproject.toml"]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.splitlines()


def is_ours(requirement: str) -> bool:
    """Tell whether the lock should name a requirement, rather than leave it to torch."""
    name = requirement.split("==")[0]
    return not BROUGHT_BY_TORCH.fullmatch(name)


def main() -> int:
    requirements = [line for line in resolve() if "==" in line and is_ours(line)]
    TARGET.write_text(HEADER + "\n".join(requirements) + "\n", encoding="utf-8")
    print(f"{TARGET.name}: {len(requirements)} pins")
    return 0


if __name__ == "__main__":
    sys.exit(main())
