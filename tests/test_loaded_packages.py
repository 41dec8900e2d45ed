"""A kernel that goes on with replaced packages is told so by the first cell of a learner's copy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from ipu_course.loaded_packages import WATCHED, refuse_replaced_packages

START = 'from ipu_course import learner_copy\n\nlearner_copy.start("00")'


def installed_elsewhere(folder: Path, name: str, version: str) -> Path:
    """Write the metadata of another version, as an installer leaves them, into a folder for the import path."""
    metadata = folder / f"{name}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    return folder


def test_a_kernel_that_was_not_touched_goes_on() -> None:
    refuse_replaced_packages()


def test_every_watched_package_is_one_that_the_course_needs() -> None:
    for module, distribution in WATCHED.items():
        assert __import__(module).__version__
        assert distribution == distribution.lower()


def test_a_replaced_package_asks_for_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(installed_elsewhere(tmp_path, "numpy", "9.9.9")))
    with pytest.raises(ImportError, match=f"has loaded numpy {numpy.__version__}, but 9.9.9 is installed now") as told:
        refuse_replaced_packages()
    assert "Restart the kernel" in str(told.value)


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_the_first_cell_of_a_copy_says_so_before_anything_else(tmp_path: Path, name: str) -> None:
    folder = installed_elsewhere(tmp_path, name, "9.9.9")
    program = f"import sys, {name}\nsys.path.insert(0, {str(folder)!r})\n{START}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"ImportError: This kernel has loaded {name} ")


def test_the_first_cell_of_a_copy_names_a_torch_that_the_model_cannot_use(tmp_path: Path) -> None:
    folder = installed_elsewhere(tmp_path, "torch", "2.15.0")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", START], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "needs torch 2.12 to 2.14, and this environment has torch 2.15.0" in done.stderr.splitlines()[-1]
