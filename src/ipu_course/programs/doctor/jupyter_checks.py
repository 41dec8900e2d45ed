"""The kernel that notebooks run in, and JupyterLab with its widgets."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Sequence

from packaging.requirements import Requirement

from ipu_course.programs.doctor.finding import Finding, notice, ok, problem
from ipu_course.programs.doctor.packages_check import INSTALL, installed_version, requirements_of

KERNEL = "python3"
BARE_NAMES = ("python", "python3", "python{}.{}".format(*sys.version_info[:2]))
WIDGETS_EXTENSION = "@jupyter-widgets/jupyterlab-manager"
WIDGET_PACKAGES = ("jupyterlab_widgets", "widgetsnbextension")


def check_kernel() -> Finding:
    """The kernel that the notebooks name."""
    try:
        from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
    except ImportError:
        return judge_kernel(None, None, Path(sys.executable))
    try:
        found = KernelSpecManager().get_kernel_spec(KERNEL)
    except (NoSuchKernel, OSError, ValueError):
        return judge_kernel(None, None, Path(sys.executable))
    return judge_kernel(list(found.argv), Path(found.resource_dir), Path(sys.executable))


def judge_kernel(command: Sequence[str] | None, folder: Path | None, this_python: Path) -> Finding:
    """``command`` starts the kernel, ``folder`` is where it is registered; both None when there is no such kernel."""
    if not command:
        return problem(f"no kernel called {KERNEL}", "notebooks cannot be run without one", INSTALL)
    if command[0] in BARE_NAMES:  # jupyter_client puts its own Python there
        return ok(f"kernel {KERNEL} is this Python")
    kernel_python = Path(command[0])
    what = f"kernel {KERNEL}, registered in {folder}, is {kernel_python}, not this Python ({this_python})"
    cure = f"export JUPYTER_PREFER_ENV_PATH=1 (make lab does), or remove it: rm -r '{folder}'"
    if shutil.which(command[0]) is None:
        return problem(f"{what}, and that does not exist", "notebooks cannot be run", cure)
    # Not resolved: the Python of a virtual environment is a link to the one that made it.
    if os.path.abspath(kernel_python.parent) != os.path.abspath(this_python.parent):
        return notice(what, "notebooks run in another environment, which may lack the course's packages", cure)
    return ok(f"kernel {KERNEL} is this Python")


def check_lab() -> Finding:
    """JupyterLab, and the extension that shows widgets in it."""
    versions = {name: installed_version(name) for name in ("jupyterlab", "ipywidgets", *WIDGET_PACKAGES)}
    return judge_lab(versions, requirements_of("ipywidgets"), _extension_folder(), Path(sys.prefix))


def judge_lab(
    versions: dict[str, str | None], asked: Sequence[Requirement], extension: Path | None, environment: Path
) -> Finding:
    """``asked`` is what ipywidgets says about its front ends, ``extension`` the first copy that JupyterLab finds."""
    why = "the lessons' widgets would stay still pictures"
    absent = [name for name in ("jupyterlab", "ipywidgets") if versions[name] is None]
    if absent:
        return problem(f"{' and '.join(absent)} not installed", "the lessons are opened in JupyterLab", INSTALL)
    for each in asked:
        name = each.name.replace("-", "_")
        if name in WIDGET_PACKAGES and not each.specifier.contains(versions[name] or "0", prereleases=True):
            return problem(f"{name} {versions[name]}, but ipywidgets needs {each.specifier}", why, INSTALL)
    what = f"JupyterLab {versions['jupyterlab']}, ipywidgets {versions['ipywidgets']}"
    if extension is None:
        return problem(f"{what}: the extension {WIDGETS_EXTENSION} is missing", why, INSTALL)
    if environment not in extension.parents:
        return notice(
            f"{what}: their extension is found in {extension}, outside of this environment",
            "an older copy there speaks another version than ipywidgets, and " + why,
            f"export JUPYTER_PREFER_ENV_PATH=1 (make lab does), or remove that folder: rm -r '{extension}'",
        )
    return ok(what)


def _extension_folder() -> Path | None:
    try:
        from jupyter_core.paths import jupyter_path
    except ImportError:
        return None
    folders = (Path(folder) / WIDGETS_EXTENSION for folder in jupyter_path("labextensions"))
    return next((folder for folder in folders if (folder / "package.json").is_file()), None)
