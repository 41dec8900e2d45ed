"""A learner's function on its way to other processes of the same Python: its compiled code in a file."""

from __future__ import annotations

import base64
import builtins
import marshal
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Callable

import torch

import poptorch

__all__ = ["read_function", "write_function"]


def write_function(function: FunctionType, file: Path) -> None:
    """Write the code of ``function``, which need not have a source file, for ``read_function``."""
    file.write_bytes(base64.b64encode(marshal.dumps(function.__code__)))


def read_function(file: Path) -> Callable[..., Any]:
    """Return the function in ``file``; it knows torch, poptorch, and what it imports itself."""
    code: CodeType = marshal.loads(base64.b64decode(file.read_bytes()))
    return FunctionType(code, {"__builtins__": builtins, "torch": torch, "poptorch": poptorch})
