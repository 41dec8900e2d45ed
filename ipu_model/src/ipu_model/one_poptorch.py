"""Refuses to run beside Graphcore's PopTorch: both are imported as the same package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution

# Graphcore's wheel has PopTorch's name; this distribution, which has a package of that name, is called ipu-model.
GRAPHCORES = "PopTorch"


def refuse_graphcores(version: str) -> None:
    """Raise ``ImportError`` if Graphcore's wheel is installed beside this distribution, whose `version` is named.

    Where both share a folder, each has overwritten files of the other, so neither can be trusted.
    """
    try:
        found = distribution(GRAPHCORES)
    except PackageNotFoundError:
        return
    raise ImportError(
        f"Graphcore's PopTorch {found.version} is installed in {found.locate_file('')}, and so is ipu-model {version}, "
        "which brings a poptorch of its own. An environment may have only one of the two: chance would decide which "
        "one a program imports, and you could take modelled results for those of IPUs. "
        "On a machine with IPUs, run `python -m pip uninstall ipu-model poptorch` and install Graphcore's wheel again. "
        "To use the IPU Model, install it into a virtual environment of its own (`python -m venv`)."
    )
