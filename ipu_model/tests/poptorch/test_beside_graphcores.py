"""Beside Graphcore's own PopTorch nothing of this distribution can be imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ipu_model


@pytest.mark.parametrize("module", ["poptorch", "ipu_model", "popdist", "popart"])
def test_an_import_says_what_was_found_which_rule_it_breaks_and_what_helps(tmp_path: Path, module: str) -> None:
    """On the import path is what the metadata of Graphcore's wheel look like."""
    wheel = tmp_path / "poptorch-3.4.0+111711.dist-info"
    wheel.mkdir()
    (wheel / "METADATA").write_text("Metadata-Version: 2.1\nName: poptorch\nVersion: 3.4.0+111711\n", encoding="utf-8")
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run([sys.executable, "-c", f"import {module}"], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: Graphcore's PopTorch 3.4.0+111711 is installed in {tmp_path}")
    assert f"so is ipu-model {ipu_model.__version__}" in last
    assert "only one of the two" in last
    assert "pip uninstall ipu-model poptorch" in last
