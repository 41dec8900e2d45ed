"""Refuses to run beside Graphcore's PopTorch, with another torch, or with one that was replaced meanwhile."""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, distribution, version

# Graphcore's wheel has PopTorch's name; this distribution, which has a package of that name, is called ipu-model.
GRAPHCORES = "PopTorch"
OLDEST, NEWEST = (2, 12), (2, 14)
"""The releases of torch that pyproject.toml admits, and says why."""


def refuse_graphcores(own_version: str) -> None:
    """Raise ``ImportError`` if Graphcore's wheel is installed too: each may have overwritten files of the other."""
    try:
        graphcores = distribution(GRAPHCORES)
    except PackageNotFoundError:
        return
    raise ImportError(
        f"Graphcore's PopTorch {graphcores.version} is installed in {graphcores.locate_file('')}, and so is "
        f"ipu-model {own_version}, which brings a poptorch of its own. An environment may have only one of the two: "
        "chance would decide which one a program imports, and you could take modelled results for those of IPUs. "
        "On a machine with IPUs, run `python -m pip uninstall ipu-model poptorch` and install Graphcore's wheel again. "
        "To use the IPU Model, install it into a virtual environment of its own (`python -m venv`)."
    )


def refuse_other_torch(own_version: str) -> None:
    """Raise ``ImportError`` if this process has, or would import, a torch that ipu-model cannot use."""
    loaded = getattr(sys.modules.get("torch"), "__version__", None)
    try:
        installed = version("torch")
    except PackageNotFoundError:
        installed = None
    if loaded is not None and installed is not None and public(loaded) != public(installed):
        raise ImportError(
            f"This process has loaded torch {loaded}, and torch {installed} was installed since. Start Python again: "
            "in a notebook, restart the kernel (Colab and Kaggle call it the session), and run the cells from the top."
        )
    present = loaded or installed
    if present is not None and not OLDEST <= tuple(map(int, re.findall(r"\d+", present)[:2])) <= NEWEST:
        oldest, newest = (".".join(map(str, limit)) for limit in (OLDEST, NEWEST))
        raise ImportError(
            f"ipu-model {own_version} needs torch {oldest} to {newest}, and this environment has torch {present}. "
            "The IPU Model uses private names of PyTorch and was tested only with these releases. Install ipu-model "
            f"again and let pip choose its torch, or run `python -m pip install 'torch=={newest}.*'`. In a notebook, "
            "restart the kernel afterwards. To keep the other torch, install ipu-model into a virtual environment of "
            "its own (`python -m venv`)."
        )


def public(version_number: str) -> str:
    """Return a version without the name of its build: the module of torch 2.12.1 says 2.12.1+cpu or 2.12.1+cu130."""
    return version_number.partition("+")[0]
