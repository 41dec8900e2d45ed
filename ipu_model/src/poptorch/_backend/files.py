"""Files of compiled programs and their modules, which are read without executing anything that they contain.

A line with the format's number, a digest of all that follows, then what `torch.save` writes of plain values and
tensors. The digest tells files that were cut short or changed on their way. It is no signature: whoever uses what a
file says checks it again. A file of `save` may also hold its module, pickled: unless the caller trusts the file, only
modules of classes that the program has imported, and options and optimisers of PopTorch and PyTorch, are created.
"""

from __future__ import annotations

import collections
import contextlib
import copyreg
import functools
import hashlib
import io
import os
import pickle
import secrets
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ipu_model.errors import Error
from poptorch._impl import createPoptorchError
from poptorch.options import Options, _DistributedOptions

_NAME, _FORMAT = b"IPU Model program ", b"2\n"
_DIGEST = hashlib.sha256
_UNPICKLABLE = (pickle.PicklingError, AttributeError, TypeError, RecursionError)


class NotStorable(Exception):
    """A value that a file cannot hold; the text names its type."""


class Invalid(Exception):
    """A file whose contents are not what its format says; the text says what is wrong."""


class OtherVersion(Invalid):
    """A file that another version has written."""


def not_as_expected(what: str, error: Exception) -> str:
    return f"{what} ({type(error).__name__}: {str(error).partition(chr(10))[0]:.200})"


def invalid(path: Path, what: str) -> Error:
    return createPoptorchError(
        f"Invalid file {path}: {what}. Export it again with compileAndExport or save, from the model and options that "
        "it is loaded into."
    )


@contextlib.contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Make "Invalid file" of any error of the body, which uses what somebody else may have written.

    PopTorch's own errors, of which the program may be the cause, only get the file's name added.
    """
    try:
        yield
    except (AssertionError, Error) as error:
        message = error.message if isinstance(error, Error) else str(error)
        if str(path) in message:
            raise
        kind = createPoptorchError if isinstance(error, Error) else AssertionError
        raise kind(f"{message} The program comes from the file {path}.") from error
    except Exception as error:
        raise invalid(path, not_as_expected("what it holds cannot be used", error)) from error


def path_of(filename: str | os.PathLike[str]) -> Path:
    """Return the file that `save` makes for this name."""
    path = Path(filename)
    return path / "model.poptorch" if path.is_dir() else path


def write(path: Path, values: Mapping[str, Any]) -> None:
    """Write `values` so that `path` has either all of them or what was there before.

    Values are tensors, numbers, text, `None`, and tuples, lists and dicts of these. Raises `NotStorable`: a value of
    another type; `OSError`: the file cannot be written.
    """
    buffer = io.BytesIO()
    try:
        torch.save(dict(values), buffer)
    except _UNPICKLABLE as error:
        raise NotStorable(f"a value that cannot be pickled ({error})") from error
    body = buffer.getvalue()
    other = torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(body))
    if other:
        raise NotStorable(f"a value of type {', '.join(sorted(other))}")
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with open(beside, "xb") as file:
            file.write(_NAME + _FORMAT + _DIGEST(body).digest() + body)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def read(path: Path) -> dict[str, Any]:
    """Read what `write` wrote. Raises `Invalid`, and why; `OSError`: the file cannot be read."""
    with open(path, "rb") as file:
        if file.read(len(_NAME)) != _NAME:
            raise Invalid("it is no program of the IPU Model")
        if file.read(len(_FORMAT)) != _FORMAT:
            raise OtherVersion("PopTorch version mismatch: its format is that of another version")
        if _exceeds_memory(os.fstat(file.fileno()).st_size):
            raise Invalid("it is larger than the memory of this machine")
        digest, body = file.read(_DIGEST().digest_size), file.read()
    if _DIGEST(body).digest() != digest:
        raise Invalid("it is truncated or corrupt")
    try:
        return dict(torch.load(io.BytesIO(body), weights_only=True).items())
    except Exception as error:  # somebody else may have written it
        raise Invalid(not_as_expected("its contents do not follow its format", error)) from error


def _exceeds_memory(size: int) -> bool:
    with contextlib.suppress(AttributeError, ValueError, OSError):  # not all systems tell
        return size > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return False


# --- modules

_PLAIN: dict[str, Any] = {
    "builtins.dict": dict,
    "builtins.frozenset": frozenset,
    "builtins.set": set,
    "builtins.slice": slice,
    "builtins.object": object,
    "functools.partial": functools.partial,
    "collections.defaultdict": collections.defaultdict,
    # Pickles of wrapped modules use it. It makes an empty object of a class, which must itself be allowed.
    "copyreg._reconstructor": copyreg._reconstructor,  # type: ignore[attr-defined]  # not in typeshed
}
# Their classes are settings and carry no code; the same holds for classes derived from the second, in any package.
_SETTINGS = ("poptorch.options", "poptorch.enums", "poptorch.optim", "poptorch.ops.blocks", "torch.optim")
_DERIVED_SETTINGS = (Options, _DistributedOptions)
# Modules of these packages run code that they carry with them.
_CARRIERS = ("torch.fx", "torch.jit", "torch.package", "torch.export", "torch._dynamo", "torch._inductor")


def pickled(module: nn.Module, optimizer: Any, options: Options) -> Tensor:
    """Return module, optimiser and options as `torch.save` writes them, as a tensor of bytes."""
    buffer = io.BytesIO()
    try:
        torch.save({"model": module, "optimizer": optimizer, "options": options}, buffer)
    except _UNPICKLABLE as error:
        raise createPoptorchError(
            f"save: the model cannot be exported, since it cannot be pickled ({error}). Define its class and functions "
            "in a module, or save with export_model=False and loadExecutable into a new model."
        ) from error
    return torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)


def unpickled(
    data: Tensor, path: Path, *, weights_only: bool
) -> tuple[nn.Module, torch.optim.Optimizer | None, Options]:
    """Return what `pickled` was given; see above for what `weights_only` allows."""
    content = data.numpy().tobytes()
    try:
        allowed = _allowed(content, path) if weights_only else []
        with torch.serialization.safe_globals(allowed):
            parts = torch.load(io.BytesIO(content), weights_only=weights_only)
    except Error:
        raise
    except Exception as error:  # a damaged or hostile pickle can raise anything
        raise invalid(path, f"its model cannot be read ({type(error).__name__}: {error})") from error
    known = isinstance(parts, dict) and isinstance(parts.get("model"), nn.Module)
    known = known and isinstance(parts.get("optimizer"), (torch.optim.Optimizer, type(None)))
    if not known or not isinstance(parts.get("options"), Options):
        raise invalid(path, "its model has no known form")
    return parts["model"], parts["optimizer"], parts["options"]


def _allowed(content: bytes, path: Path) -> list[Any]:
    """Return the classes and functions that a pickle may use besides those that PyTorch allows in any case."""
    wanted = torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(content))
    values = {name: _safe_global(name) for name in wanted}
    refused = sorted(name for name, value in values.items() if value is None)
    if refused:
        raise createPoptorchError(
            f"Invalid file {path}: it needs {', '.join(refused)}, which is no class of an imported model. Import the "
            "model's module before poptorch.load; allow what else you know with "
            "torch.serialization.add_safe_globals([...]); or pass weights_only=False if you trust the file: it may "
            "then run any code."
        )
    return list(values.values())


def _safe_global(name: str) -> Any | None:
    """Return the object with this full name if creating or calling it is harmless; import nothing."""
    if name in _PLAIN:
        return _PLAIN[name]
    value, module = _already_imported(name)
    if isinstance(value, type):
        # A class counts only under its own name, not under that of a module that imported it.
        if f"{value.__module__}.{value.__qualname__}" != name:
            return None
        if issubclass(value, nn.Module):
            return None if any(_is_in(base.__module__, _CARRIERS) for base in value.__mro__) else value
        return value if _is_in(module, _SETTINGS) or issubclass(value, _DERIVED_SETTINGS) else None
    is_function = isinstance(value, types.FunctionType) and value.__module__ == "torch.nn.functional"
    return value if is_function and name == f"torch.nn.functional.{value.__name__}" else None


def _already_imported(name: str) -> tuple[Any, str]:
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
