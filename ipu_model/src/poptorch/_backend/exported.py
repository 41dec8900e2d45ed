"""The exported module inside a file of `save`: pickled, and read without executing what the pickle asks for.

Unless the caller trusts the file, `poptorch.load` creates only modules of classes that the program has imported, and
options and optimisers of PopTorch and PyTorch.
"""

from __future__ import annotations

import collections
import copyreg
import functools
import io
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ipu_model.errors import Error
from poptorch._impl import createPoptorchError
from poptorch._poptorch_data import invalid
from poptorch.options import Options, _DistributedOptions

_PLAIN: dict[str, Any] = {
    "builtins.dict": dict, "builtins.frozenset": frozenset, "builtins.set": set, "builtins.slice": slice,
    "functools.partial": functools.partial, "builtins.object": object,
    "collections.defaultdict": collections.defaultdict,
    # Pickles of wrapped modules use it. It makes an empty object of a class, which must itself be allowed.
    "copyreg._reconstructor": copyreg._reconstructor,  # type: ignore[attr-defined]  # not in typeshed
}  # fmt: skip
# Their classes are settings and carry no code.
_SETTINGS = (
    "poptorch.options", "poptorch.enums", "poptorch.optim", "poptorch.ops.blocks", "torch.optim",
)  # fmt: skip
# The same holds for classes derived from these, in any package.
_DERIVED_SETTINGS = (Options, _DistributedOptions)
# Modules of these packages run code that they carry with them.
_CARRIERS = ("torch.fx", "torch.jit", "torch.package", "torch.export", "torch._dynamo", "torch._inductor")


def pickled(module: nn.Module, optimizer: Any, options: Options) -> Tensor:
    """Return module, optimiser and options as `torch.save` writes them, as a tensor of bytes.

    Raises:
        Error: something in them cannot be pickled.
    """
    buffer = io.BytesIO()
    try:
        torch.save({"model": module, "optimizer": optimizer, "options": options}, buffer)
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as error:
        raise createPoptorchError(
            f"save: the model cannot be exported, since it cannot be pickled ({error}). Define its class and functions "
            "in a module, or save with export_model=False and loadExecutable into a new model."
        ) from error
    return torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)


def unpickled(data: Tensor, path: Path, *, weights_only: bool) -> dict[str, Any]:
    """Return what `pickled` was given, by the names `model`, `optimizer` and `options`.

    With `weights_only`, only classes of imported models, PopTorch's settings and optimisers are created.

    Raises:
        Error: "Invalid file": not a result of `pickled`, or something in it is not allowed.
    """
    content = data.numpy().tobytes()
    try:
        allowed = _allowed(content, path) if weights_only else []
        with torch.serialization.safe_globals(allowed):
            parts = torch.load(io.BytesIO(content), weights_only=weights_only)
    except Error:
        raise
    except Exception as error:  # a damaged or hostile pickle can raise anything
        raise invalid(path, f"its model cannot be read ({type(error).__name__}: {error})") from error
    if not _has_known_form(parts):
        raise invalid(path, "its model has no known form")
    return dict(parts)


def _has_known_form(parts: Any) -> bool:
    if not isinstance(parts, dict) or not isinstance(parts.get("model"), nn.Module):
        return False
    return isinstance(parts.get("options"), Options) and isinstance(
        parts.get("optimizer"), (torch.optim.Optimizer, type(None))
    )


def _allowed(content: bytes, path: Path) -> list[Any]:
    """Return the classes and functions that a pickle may use besides those that PyTorch allows in any case.

    Raises:
        Error: names those that are not allowed.
    """
    wanted = torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(content))
    found = {name: _safe_global(name) for name in wanted}
    refused = sorted(name for name, value in found.items() if value is None)
    if refused:
        raise createPoptorchError(
            f"Invalid file {path}: it needs {', '.join(refused)}, which is no class of an imported model. Import the "
            "model's module before poptorch.load; allow what else you know with "
            "torch.serialization.add_safe_globals([...]); or pass weights_only=False if you trust the file: it may "
            "then run any code."
        )
    return list(found.values())


def _safe_global(name: str) -> Any | None:
    """Return the object with this full name if creating or calling it is harmless; import nothing."""
    if name in _PLAIN:
        return _PLAIN[name]
    value, module = _already_imported(name)
    if isinstance(value, type):
        # A class counts only under its own name, not under that of a module that imported it.
        if f"{value.__module__}.{value.__qualname__}" != name:
            return None
        carries = any(_is_in(base.__module__, _CARRIERS) for base in value.__mro__)
        if issubclass(value, nn.Module):
            return None if carries else value
        return value if _is_in(module, _SETTINGS) or issubclass(value, _DERIVED_SETTINGS) else None
    is_function = isinstance(value, types.FunctionType) and value.__module__ == "torch.nn.functional"
    return value if is_function and name == f"torch.nn.functional.{value.__name__}" else None


def _already_imported(name: str) -> tuple[Any, str]:
    """Find a full name in the modules that the program has imported; return the module's name, too."""
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        module = sys.modules.get(".".join(parts[:cut]))
        if module is not None:
            value: Any = module
            for part in parts[cut:]:
                value = vars(value).get(part) if hasattr(value, "__dict__") else None
            return value, module.__name__
    return None, ""


def _is_in(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)
