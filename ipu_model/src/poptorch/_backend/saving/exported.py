"""The exported module inside a file of `save`: pickled, and read without executing what the pickle asks for.

`poptorch.load` makes modules of classes that the program has imported, options and optimisers of PopTorch and of
PyTorch, and nothing else, unless the caller trusts the file.
"""

from __future__ import annotations

import collections
import copyreg
import functools
import io
import logging
import os
import pickle
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ipu_model.errors import Error
from ipu_model.stored import OtherVersion
from poptorch._backend.saving import files
from poptorch._impl import createPoptorchError
from poptorch.enums import ConnectionType
from poptorch.options import Options

if TYPE_CHECKING:
    from pathlib import Path

    from poptorch._poplar_executor import PoplarExecutor

_logger = logging.getLogger("poptorch::python")

_PLAIN: dict[str, Any] = {
    "builtins.dict": dict, "builtins.frozenset": frozenset, "builtins.set": set, "builtins.slice": slice,
    "functools.partial": functools.partial, "builtins.object": object,
    "collections.defaultdict": collections.defaultdict,
    # It makes an empty object of a class, which must be allowed for itself: how wrapped modules are pickled.
    "copyreg._reconstructor": copyreg._reconstructor,  # type: ignore[attr-defined]  # not in typeshed
}  # fmt: skip
# Their classes are settings and hold no code of their own making.
_SETTINGS = (
    "poptorch.options", "poptorch.options.strategies", "poptorch.enums", "poptorch.optim", "poptorch.ops.blocks",
    "popdist.poptorch", "torch.optim",
)  # fmt: skip
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


def load(
    filename: str | os.PathLike[str],
    edit_opts_fn: Callable[[Options], Any] | None = None,
    *,
    weights_only: bool = True,
) -> PoplarExecutor:
    """Return the executor that `save` or `compileAndExport` wrote with its model: wrapped, compiled and attached.

    `edit_opts_fn(options)` may change the stored options before they are used, but not those that the program was
    compiled with. An offline target becomes `ConnectionType.Always`.

    As with `torch.load`, a file is read without executing what it contains: the classes of the model must have been
    imported before, and other functions and classes in it must be allowed by `torch.serialization.add_safe_globals`.
    What the model then computes is up to whoever wrote the file: its attributes and its program of tensor ops.
    **With `weights_only=False` anything in the file may run: use it for files that you trust only.**

    Raises:
        AssertionError: written by another version, or without its model (`export_model=False`).
        Error: "Invalid file": truncated, corrupt, or with classes that are not allowed.
        OSError: the file cannot be read.
    """
    from poptorch._backend.wrap import inferenceModel, trainingModel

    path = files.path_to_read(filename)
    executable = _with_model(path)
    assert executable.model is not None
    parts = _unpickled(executable.model, path, weights_only=weights_only)
    with files.damage_named(path):
        options = _usable(parts["options"])
    if edit_opts_fn is not None:
        edit_opts_fn(options)
    with files.damage_named(path):
        executor = (
            trainingModel(parts["model"], options, parts["optimizer"])
            if executable.training
            else inferenceModel(parts["model"], options)
        )
    executor._use(executable, path, same_code=False)
    return executor


def _with_model(path: Path) -> files.Executable:
    """Read a file that must be of this version and have a model."""
    try:
        executable = files.read(path)
    except Error as error:
        if isinstance(error.__cause__, OtherVersion):
            raise AssertionError(error.message) from error
        raise
    assert executable.model is not None, (
        f"Invalid file {path}: it was saved with export_model=False, without the model. Create the model again, wrap "
        "it and call loadExecutable."
    )
    return executable


def _unpickled(data: Tensor, path: Path, *, weights_only: bool) -> dict[str, Any]:
    content = data.numpy().tobytes()
    try:
        allowed = _allowed(content, path) if weights_only else []
        with torch.serialization.safe_globals(allowed):
            parts = torch.load(io.BytesIO(content), weights_only=weights_only)
    except Error:
        raise
    except Exception as error:  # whatever a pickle that nobody has written in this way leads to
        raise files.invalid(path, f"its model cannot be read ({type(error).__name__}: {error})") from error
    if not _has_known_form(parts):
        raise files.invalid(path, "its model has no known form")
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
    """Return what a full name stands for if making or calling it is harmless; imports nothing."""
    if name in _PLAIN:
        return _PLAIN[name]
    value, module = _already_imported(name)
    if isinstance(value, type):
        # A class goes by its own name only, not by that of a module that has imported it.
        if f"{value.__module__}.{value.__qualname__}" != name:
            return None
        carries = any(_is_in(base.__module__, _CARRIERS) for base in value.__mro__)
        if issubclass(value, nn.Module):
            return None if carries else value
        return value if _is_in(module, _SETTINGS) else None
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


def _usable(options: Options) -> Options:
    """Return stored options as they can be used here: not frozen, and not for an offline target."""
    options._unfreeze()
    options.deleteIfExists("ipu_version")
    if options.connection_type == ConnectionType.Never:
        options.connectionType(ConnectionType.Always)
    return options
