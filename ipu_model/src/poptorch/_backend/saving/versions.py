"""Which versions a file was written with: a traced program is good for the ones that traced it only."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import torch

from ipu_model.stored import OtherVersion


def versions() -> dict[str, Any]:
    """Return the versions that a file must have been written with to be used here."""
    return {"poptorch": version("ipu-model"), "torch": torch.__version__}


def check_versions(values: Mapping[str, Any]) -> None:
    """Compare the versions in a file with those running.

    Raises:
        OtherVersion: names both.
    """
    for name, here in versions().items():
        if values.get(name) != here:
            shown = {"poptorch": "PopTorch"}.get(name, name)
            raise OtherVersion(f"{shown} version mismatch: written with {values.get(name)}, this is {here}")
