"""What the test set-up relies on, and what every source file keeps to."""

from __future__ import annotations

from collections import Counter
from pathlib import Path


def test_every_python_file_below_the_test_folders_has_a_name_of_its_own(project: Path) -> None:
    """pytest puts each test folder on the import path (see pyproject.toml): equal names would collide.

    A file of a package has the package's name before its own.
    """
    files = [file for folder in ("tests", "ipu_model/tests") for file in (project / folder).rglob("*.py")]
    alone = [file for file in files if not (file.parent / "__init__.py").exists()]
    names = Counter(file.stem for file in alone if file.name != "conftest.py")
    assert names, "no test file found"
    assert [name for name, count in names.items() if count > 1] == []


def test_no_test_file_hides_a_package(project: Path) -> None:
    """A helper called jupyterlab.py would be imported in place of JupyterLab."""
    packages = {"ipu_course", "ipu_model", "poptorch", "torch", "jupyterlab", "playwright", "notebook_build"}
    files = [file for folder in ("tests", "ipu_model/tests") for file in (project / folder).rglob("*.py")]
    assert [file.name for file in files if file.stem in packages] == []


def test_both_distributions_are_installed_from_this_folder(project: Path) -> None:
    import ipu_course
    import ipu_model
    import poptorch

    assert Path(str(ipu_course.__file__)).is_relative_to(project / "src")
    assert Path(str(ipu_model.__file__)).is_relative_to(project / "ipu_model/src")
    assert Path(str(poptorch.__file__)).is_relative_to(project / "ipu_model/src")
