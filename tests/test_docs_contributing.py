"""The examples in CONTRIBUTING.md: applied to a copy of the project, their tests are red first and then green."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

DIFF = re.compile(r"^```diff\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Example:
    """A section of the page: its first diff has the test, its second the change; `tests` are red between the two."""

    heading: str
    tests: tuple[str, ...]


EXAMPLES = (
    Example(
        "Add an op to the engine",
        ("engine/test_hand_written_steps.py::TestByHand::test_fake_quantisation_is_one_pass",),
    ),
    Example("Add a machine", ("engine/test_hardware.py::TestSystems::test_sizes[Bow-POD1024-1024-Bow]",)),
    Example("Add a published row", ("engine/test_validate.py::TestRows::test_ids_are_unique_and_have_predictions",)),
    Example(
        "Add a PopTorch name",
        (
            "popdist/test_horovod_alone.py::test_one_rank_gets_back_what_it_gives_and_waits_for_nobody",
            "poptorch/test_poptorch_names.py::TestTable::test_each_name_can_be_reached_refused_ones_included",
        ),
    ),
)  # fmt: skip
ALSO = (
    "poptorch/test_poptorch_names.py::TestTable",
    "engine/test_hardware.py::test_every_number_has_unit_source_and_confidence_and_inherited_ones_keep_their_source",
)


@dataclass(frozen=True)
class Copy:
    """A copy of the IPU Model with its tests."""

    root: Path

    def apply(self, diff: str) -> None:
        """Apply a diff as the page says."""
        command = ["git", "apply", "-C1", "-"]
        # It is no part of the repository that it may lie in.
        environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(self.root.parent)}
        done = subprocess.run(command, cwd=self.root, input=diff, env=environment, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run Python on the copy."""
        environment = {**os.environ, "PYTHONPATH": str(self.root / "ipu_model" / "src")}
        return subprocess.run(
            [sys.executable, *command], cwd=self.root, env=environment, text=True, capture_output=True, check=False
        )

    def failing(self, *tests: str) -> set[str]:
        """Return which of the tests fail, without what stands after a parameter's bracket."""
        paths = [f"ipu_model/tests/{test}" for test in tests]
        done = self.run("-m", "pytest", "-q", "-p", "no:cacheprovider", *paths)
        assert done.returncode in (0, 1), done.stdout + done.stderr
        return {
            name.removeprefix("ipu_model/tests/") for name in re.findall(r"^FAILED (\S+)", done.stdout, re.MULTILINE)
        }


@pytest.fixture(scope="module")
def page(project: Path) -> str:
    return (project / "CONTRIBUTING.md").read_text(encoding="utf-8")


@pytest.fixture
def copy(project: Path, tmp_path: Path) -> Copy:
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "programs", "long_runs", ".*")
    for folder in ("src", "validation"):
        source = project / "ipu_model" / folder
        shutil.copytree(source, tmp_path / "ipu_model" / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(project / "ipu_model" / "tests", tmp_path / "ipu_model" / "tests", ignore=ignore)
    shutil.copy(project / "ipu_model" / "pyproject.toml", tmp_path / "ipu_model")
    shutil.copy(project / "pyproject.toml", tmp_path)
    return Copy(tmp_path)


def diffs(page: str, heading: str) -> list[str]:
    """Return the diffs of a section of the page."""
    section = page.partition(f"\n### {heading}\n")[2].partition("\n### ")[0]
    return [found[1] for found in DIFF.finditer(section)]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git") is None, reason="the examples are applied with git")
def test_each_example_is_red_with_its_test_and_green_with_its_change(page: str, copy: Copy) -> None:
    for example in EXAMPLES:
        test, _ = diffs(page, example.heading)
        copy.apply(test)
    tests = [test for example in EXAMPLES for test in example.tests]
    red = copy.failing(*tests)
    for example in EXAMPLES:
        assert all(any(name.startswith(test) for name in red) for test in example.tests), example.heading
    for example in EXAMPLES:
        copy.apply(diffs(page, example.heading)[1])
    assert copy.failing(*tests, *ALSO) == set()
    shown = copy.run("-m", "ipu_model", "validate", "mlperf.rate").stdout
    modelled = re.search(r"shows 29,663 published and ([\d,]+) modelled", page)
    assert modelled is not None
    assert re.search(rf"29,663 \| +{modelled[1]} ", shown), shown
    assert "1024" in copy.run("-m", "ipu_model", "machines", "Bow-POD1024").stdout


def test_the_tests_that_the_page_names_exist(page: str, project: Path) -> None:
    named = re.findall(r"python -m pytest -q ((?:[\w./]+ )*[\w./]+\.py)", page)
    files = [file for files in named for file in files.split()]
    assert len(files) >= 6
    assert [file for file in files if not (project / file).exists()] == []
