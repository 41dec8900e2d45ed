"""Run the tests of PopTorch's companion packages, in a virtual environment that has them: `make companions`.

The environment, .venv-companions, is a layer over .venv. It contains the packages that requirements-companions.txt
pins, and takes everything else from .venv, even if the companions ask for other versions.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LAYER = ROOT / ".venv-companions"
PYTHON = LAYER / "bin" / "python"
REQUIREMENTS = ROOT / "requirements-companions.txt"
STAMP = LAYER / "installed"
NEWEST_PYTHON = (3, 11)
BELOW = "import site; site.addsitedir({!r})\n"


def main() -> int:
    if sys.version_info[:2] > NEWEST_PYTHON:
        wanted = ".".join(map(str, NEWEST_PYTHON))
        print(
            f"companions: .venv has Python {'.'.join(map(str, sys.version_info[:2]))}, and transformers 4.29 needs a "
            f"tokenizers that has no wheels after {wanted}: rm -r .venv, then make PYTHON=python{wanted} companions",
            file=sys.stderr,
        )
        return 1
    wanted_stamp = f"{sys.version} {hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()}"
    if not STAMP.exists() or STAMP.read_text(encoding="utf-8") != wanted_stamp:
        make_layer()
        STAMP.write_text(wanted_stamp, encoding="utf-8")
    # The companions are years older than torch here, so their warnings do not concern this project.
    command = [str(PYTHON), "-m", "pytest", "--disable-warnings", "ipu_model/tests/companions", *sys.argv[1:]]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "IPU_MODEL_COMPANIONS": "1"}).returncode


def make_layer() -> None:
    """Create the environment, and delete an old one first.

    Raises:
        CalledProcessError: a step failed and has printed its error.
    """
    shutil.rmtree(LAYER, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(LAYER)], check=True)
    packages = next((LAYER / "lib").glob("python*/site-packages"))
    own = next((Path(sys.prefix) / "lib").glob("python*/site-packages"))
    (packages / "below.pth").write_text(BELOW.format(str(own)), encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(PYTHON), "--disable-pip-version-check", "--no-input"]
    subprocess.run([*pip, "install", "--no-deps", "-r", str(REQUIREMENTS)], check=True)


if __name__ == "__main__":
    sys.exit(main())
