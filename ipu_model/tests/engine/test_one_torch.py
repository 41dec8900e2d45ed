"""With another torch, or one that changed under the process, nothing of this distribution can be imported."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ipu_model
from ipu_model.guards import NEWEST, OLDEST, public, refuse_other_torch

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
NEEDS = f"needs torch {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}, and this environment has torch 2.15.0"


@pytest.mark.parametrize(("program", "said"), [
    *((f"import {name}", NEEDS) for name in ("poptorch", "ipu_model", "popdist", "popart")),
    ("import sys, torch; sys.path.insert(0, sys.argv[1]); import poptorch",
     f"This process has loaded torch {torch.__version__}, and torch 2.15.0 was installed since"),
])  # fmt: skip
def test_an_import_says_which_torch_is_there_which_is_needed_and_what_helps(
    tmp_path: Path, program: str, said: str
) -> None:
    """The folder has the name and the metadata of a later torch, and nothing else of it."""
    (tmp_path / "torch-2.15.0.dist-info").mkdir()
    (tmp_path / "torch.py").write_text('__version__ = "2.15.0+cpu"\n', encoding="utf-8")
    metadata = "Metadata-Version: 2.1\nName: torch\nVersion: 2.15.0\n"
    (tmp_path / "torch-2.15.0.dist-info" / "METADATA").write_text(metadata, encoding="utf-8")
    found_first = [str(tmp_path)] if said is NEEDS else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*found_first, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert said in last
    assert "restart the kernel" in last
    if said is NEEDS:
        assert last.startswith(f"ImportError: ipu-model {ipu_model.__version__} needs")
        assert f"pip install 'torch=={NEWEST[0]}.{NEWEST[1]}.*'" in last


def test_the_torch_of_these_tests_is_accepted_and_the_name_of_a_build_is_not_another_version() -> None:
    refuse_other_torch(ipu_model.__version__)
    assert public("2.12.1+cu130") == public("2.12.1+cpu") == "2.12.1"


def test_the_releases_are_those_that_the_distribution_asks_for() -> None:
    asked = re.search(r'"torch>=(\d+)\.(\d+)\.\d+,<(\d+)\.(\d+)"', PYPROJECT.read_text(encoding="utf-8"))
    assert asked is not None
    *oldest, major, minor = map(int, asked.groups())
    assert (tuple(oldest), (major, minor - 1)) == (OLDEST, NEWEST)
