"""Notices packages that were replaced after this kernel had loaded them, which a notebook does not show by itself."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version

# The modules that an installation of the course may replace in a hosted notebook, and their distributions' names.
WATCHED = {
    "IPython": "ipython",
    "PIL": "pillow",
    "ipywidgets": "ipywidgets",
    "matplotlib": "matplotlib",
    "numpy": "numpy",
    "pandas": "pandas",
    "torch": "torch",
    "torchvision": "torchvision",
}


def refuse_replaced_packages() -> None:
    """Raise ``ImportError`` if this process goes on with a package of which another version is now installed.

    Its modules would then be of two versions, and the errors that follow name neither.
    """
    replaced = [
        f"{distribution} {loaded}, but {installed} is installed now"
        for module, distribution in WATCHED.items()
        for loaded, installed in [_versions(module, distribution)]
        if loaded and installed and loaded.partition("+")[0] != installed.partition("+")[0]
    ]
    if replaced:
        raise ImportError(
            f"This kernel has loaded {', '.join(replaced)}. Restart the kernel (Colab and Kaggle call it the session), "
            "then run the cells from the top. Nothing has to be installed again."
        )


def _versions(module: str, distribution: str) -> tuple[str | None, str | None]:
    """Return the version of a module that is loaded, and the installed one; ``None`` for what there is not."""
    loaded = getattr(sys.modules.get(module), "__version__", None)
    try:
        return (None, None) if loaded is None else (str(loaded), version(distribution))
    except PackageNotFoundError:
        return str(loaded), None
