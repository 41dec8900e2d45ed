"""Jupyter: the kernel that notebooks run in, and JupyterLab with its widgets."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Sequence

from packaging.requirements import Requirement

from ipu_course.programs.doctor.environment import FindVersion, built_for, installed_version, unmet
from ipu_course.programs.doctor.finding import INSTALL, Finding, notice, ok, problem

KERNEL = "python3"
BARE_NAMES = ("python", "python3", "python{}.{}".format(*sys.version_info[:2]))
WIDGETS_EXTENSION = "@jupyter-widgets/jupyterlab-manager"
PREFER_THIS = "Run `export JUPYTER_PREFER_ENV_PATH=1`, as `make lab` does, or remove the other one: rm -r '{}'"


def check_kernel() -> Finding:
    """Look for the kernel that the notebooks name, as Jupyter does."""
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    try:
        found = KernelSpecManager().get_kernel_spec(KERNEL)
    except (NoSuchKernel, OSError, ValueError):
        return problem(f"There is no kernel called {KERNEL}.", "Notebooks cannot run without a kernel.", INSTALL)
    return judge_kernel(found.argv[0], Path(found.resource_dir), Path(sys.executable))


def judge_kernel(python: str, folder: Path, this_python: Path) -> Finding:
    """Judge the ``python`` of the kernel that is registered in ``folder``."""
    is_there = shutil.which(python) is not None
    # Paths are not resolved: the Python of a virtual environment is a link to the one that made it.
    same_folder = os.path.abspath(Path(python).parent) == os.path.abspath(this_python.parent)
    if python in BARE_NAMES or (is_there and same_folder):  # jupyter_client puts its own Python for a bare name
        return ok(f"The kernel {KERNEL} runs this Python.")
    what = f"The kernel {KERNEL}, registered in {folder}, runs {python} instead of this Python, {this_python}"
    if not is_there:
        return problem(f"{what}, and that file is gone.", "Notebooks cannot run.", PREFER_THIS.format(folder))
    why = "Notebooks run in another environment, which may lack the course's packages."
    return notice(f"{what}.", why, PREFER_THIS.format(folder))


def find_extension() -> Path | None:
    """Return the folder of the widgets' extension that JupyterLab takes, the first of those where it looks."""
    from jupyter_core.paths import jupyter_path

    folders = (Path(folder) / WIDGETS_EXTENSION for folder in jupyter_path("labextensions"))
    return next((folder for folder in folders if (folder / "package.json").is_file()), None)


def lab_packages() -> list[Requirement]:
    """Return what the lessons' widgets need, in versions that fit together."""
    return [Requirement("jupyterlab"), *built_for("ipywidgets", "jupyterlab_widgets", "widgetsnbextension")]


def judge_lab(
    needed: Sequence[Requirement],
    extension: Path | None,
    environment: Path,
    version_of: FindVersion = installed_version,
) -> Finding:
    """Judge JupyterLab and its widgets by the packages they need and by where their ``extension`` is."""
    why = "You open the lessons in JupyterLab. Without its widget extension, their widgets are only still pictures."
    wrong = unmet(needed, version_of)
    if wrong:
        return problem(f"JupyterLab and its widgets are not compatible: {wrong}.", why, INSTALL)
    if extension is None:
        return problem(f"JupyterLab's extension {WIDGETS_EXTENSION} is missing.", why, INSTALL)
    if environment not in extension.parents:
        what = f"JupyterLab loads its widget extension from {extension}, outside this environment."
        why = "If that copy does not match ipywidgets, the widgets of the lessons are only still pictures."
        return notice(what, why, PREFER_THIS.format(extension))
    return ok(f"JupyterLab {version_of('jupyterlab')} and ipywidgets {version_of('ipywidgets')} are compatible.")
