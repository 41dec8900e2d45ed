"""Refuses to run with another release of torch, or with one that was replaced after this process had loaded it."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version

# pyproject.toml asks for it, and says why.
RELEASE = "2.12"


def refuse_other_torch(own_version: str) -> None:
    """Raise ``ImportError`` if this process has, or would import, a torch that ipu-model `own_version` cannot use.

    A torch that is not installed is left to whatever imports it.
    """
    loaded, installed = _loaded(), _installed()
    if loaded is not None and installed is not None and public(loaded) != public(installed):
        raise ImportError(
            f"This process has loaded torch {loaded}, and torch {installed} was installed since. Start Python again: "
            "in a notebook, restart the kernel (Colab and Kaggle call it the session), and run the cells from the top."
        )
    found = loaded or installed
    if found is not None and not found.startswith(f"{RELEASE}."):
        raise ImportError(
            f"ipu-model {own_version} needs torch {RELEASE}, and this environment has torch {found}. The IPU Model "
            "uses private names of PyTorch and was tested only with this release. Install ipu-model again and let pip "
            f"choose its torch, or run `python -m pip install 'torch=={RELEASE}.*'`. In a notebook, restart the kernel "
            "afterwards. To keep the other torch, install ipu-model into a virtual environment of its own "
            "(`python -m venv`)."
        )


def public(version_number: str) -> str:
    """Return a version without the name of its build: the module of torch 2.12.1 says 2.12.1+cpu or 2.12.1+cu130."""
    return version_number.partition("+")[0]


def _loaded() -> str | None:
    """Return the version of the torch that this process has imported."""
    found = getattr(sys.modules.get("torch"), "__version__", None)
    return None if found is None else str(found)


def _installed() -> str | None:
    """Return the version of the torch that an import would find."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return None
