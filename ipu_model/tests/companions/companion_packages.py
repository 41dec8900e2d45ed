"""Whether PopTorch's companion packages are installed, and what their programs need from the environment."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest


def need(*packages: str) -> None:
    """Skip the calling module without these packages, or fail where `make companions` promises them.

    Lightning and optimum-graphcore ask for IPU hardware while they are imported.
    """
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        reason = f"not installed: {', '.join(missing)} (make companions runs these tests in an environment that has it)"
        if os.environ.get("IPU_MODEL_COMPANIONS"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason, allow_module_level=True)
    os.environ.setdefault("IPU_MODEL_AS_HARDWARE", "1")
