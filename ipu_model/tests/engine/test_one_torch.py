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

OLDEST_TEXT, NEWEST_TEXT = ".".join(map(str, OLDEST)), ".".join(map(str, NEWEST))
PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


@pytest.fixture
def other_torch(tmp_path: Path) -> Path:
    """A folder for the import path with the name and the metadata of a later torch, and nothing else of it."""
    folder = tmp_path / "torch-2.15.0.dist-info"
    folder.mkdir()
    (tmp_path / "torch.py").write_text('__version__ = "2.15.0+cpu"\n', encoding="utf-8")
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.15.0\n", encoding="utf-8")
    return tmp_path


def last_line(program: str, *paths: Path) -> str:
    """Return the last line of what a program prints before it fails; `paths` come first when it imports."""
    search = [*map(str, paths), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(search)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("module", ["poptorch", "ipu_model", "popdist", "popart"])
def test_an_import_says_which_torch_is_there_which_is_needed_and_what_helps(other_torch: Path, module: str) -> None:
    last = last_line(f"import {module}", other_torch)
    assert last.startswith(
        f"ImportError: ipu-model {ipu_model.__version__} needs torch {OLDEST_TEXT} to {NEWEST_TEXT}, and "
    )
    assert "this environment has torch 2.15.0" in last
    assert f"pip install 'torch=={NEWEST_TEXT}.*'" in last
    assert "restart the kernel" in last


def test_a_torch_that_was_replaced_after_it_was_loaded_asks_for_a_restart(other_torch: Path) -> None:
    last = last_line(f"import sys, torch; sys.path.insert(0, {str(other_torch)!r}); import poptorch")
    assert last.startswith(f"ImportError: This process has loaded torch {torch.__version__}, and torch 2.15.0 was")
    assert "restart the kernel" in last


def test_the_torch_of_these_tests_is_accepted() -> None:
    refuse_other_torch(ipu_model.__version__)


def test_the_name_of_a_build_is_not_another_version() -> None:
    assert public("2.12.1+cu130") == public("2.12.1+cpu") == "2.12.1"


def test_the_releases_are_those_that_the_distribution_asks_for() -> None:
    asked = re.search(r'"torch>=(\d+)\.(\d+)\.\d+,<(\d+)\.(\d+)"', PYPROJECT.read_text(encoding="utf-8"))
    assert asked is not None
    *oldest, major, minor = map(int, asked.groups())
    assert tuple(oldest) == OLDEST
    assert (major, minor - 1) == NEWEST
