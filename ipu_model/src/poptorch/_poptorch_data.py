"""Files of compiled programs and their modules, which are read without executing anything that they contain.

A line with the format's number, a digest of all that follows (no signature), then what `torch.save` writes of plain
values and tensors. A file of `save` may also hold its module, pickled: unless the caller trusts the file, only modules
of classes that the program has imported, and options and optimisers of PopTorch and PyTorch, are created.
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
import sys
import types
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from ipu_model import __version__
from ipu_model.batching import ReplicaGroups
from ipu_model.capture.describe import digest_of
from ipu_model.capture.graph import Graph
from ipu_model.capture.variables import restore_attributes
from ipu_model.errors import Error
from ipu_model.whole_files import regular_file, write_whole
from poptorch._impl import createPoptorchError
from poptorch.options import Options, _DistributedOptions

# PopTorch's release whose behaviour this is; the local part says what it really is.
VERSION = f"3.4.0+ipu.model.{__version__}"

_NAME, _FORMAT = b"IPU Model program ", b"2\n"
_DIGEST = hashlib.sha256
_UNPICKLABLE = (pickle.PicklingError, AttributeError, TypeError, RecursionError)


def versions() -> dict[str, str]:
    return {"poptorch": __version__, "torch": str(torch.__version__)}


class Invalid(Exception):
    """A file whose contents are not what its format says; the text says what is wrong."""


class OtherVersion(Invalid):
    """A file that another version has written."""


def _not_as_expected(what: str, error: Exception) -> str:
    return f"{what} ({type(error).__name__}: {str(error).partition(chr(10))[0]:.200})"


def invalid(path: Path, what: str) -> Error:
    return createPoptorchError(
        f"Invalid file {path}: {what}. Export it again with compileAndExport or save, from the model and options that "
        "it is loaded into."
    )


@contextlib.contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Make "Invalid file" of any error of the body, which uses what somebody else may have written."""
    try:
        yield
    # PopTorch's own errors, of which the program may be the cause, only get the file's name added.
    except (AssertionError, Error) as error:
        message = error.message if isinstance(error, Error) else str(error)
        if str(path) in message:
            raise
        kind = createPoptorchError if isinstance(error, Error) else AssertionError
        raise kind(f"{message} The program comes from the file {path}.") from error
    except Exception as error:
        raise invalid(path, _not_as_expected("what it holds cannot be used", error)) from error


def path_of(filename: str | os.PathLike[str]) -> Path:
    path = Path(filename)
    if "\0" in str(path):
        raise createPoptorchError(f"The name of a file cannot contain a null byte: {str(path)!r}.")
    return path / "model.poptorch" if path.is_dir() else path


def write_values(path: Path, values: Mapping[str, Any]) -> None:
    """Write the versions that run here, and `values`, so that `path` has either all of them or what was there before.

    Values are tensors, numbers, text, `None`, and tuples, lists and dicts of these. Raises `Error`: a value of another
    type; `OSError`: the file cannot be written.
    """
    buffer = io.BytesIO()
    try:
        torch.save({**versions(), **values}, buffer)
    except _UNPICKLABLE as error:
        raise _not_storable(f"a value that cannot be pickled ({error})") from error
    body = buffer.getvalue()
    other = torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(body))
    if other:
        raise _not_storable(f"a value of type {', '.join(sorted(other))}")
    write_whole(path, _NAME + _FORMAT + _DIGEST(body).digest() + body)


def _not_storable(what: str) -> Error:
    return Error(
        f"save: the model was compiled for {what}, which a file cannot hold. Pass tensors, numbers, text, tuples, "
        "lists or dicts to forward, or save model.state_dict()."
    )


def read_values(path: Path) -> dict[str, Any]:
    """Read what `write_values` wrote. Raises `Invalid`, and why; `OSError`: the file cannot be read."""
    with regular_file(path) as file:
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
        _check_size(body)
        values = dict(torch.load(io.BytesIO(body), weights_only=True).items())
    except Invalid:
        raise
    except Exception as error:  # somebody else may have written it
        raise Invalid(_not_as_expected("its contents do not follow its format", error)) from error
    for name, here in versions().items():
        written = values.pop(name, None)
        if written != here:
            shown = "PopTorch" if name == "poptorch" else name
            raise OtherVersion(f"{shown} version mismatch: written with {written}, this is {here}")
    return values


def _check_size(data: bytes) -> None:
    """Refuse an archive that makes much of a few bytes; `torch.save` compresses nothing."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        if any(m.compress_type != zipfile.ZIP_STORED for m in members) or sum(m.file_size for m in members) > len(data):
            raise Invalid("it would unpack to more than its own size")
        # PyTorch lets any pickle call it, with a number of bytes.
        if any(member.filename.endswith(".pkl") and b"bytearray" in archive.read(member) for member in members):
            raise Invalid("it holds a bytearray, which can be of any size")


def _exceeds_memory(size: int) -> bool:
    with contextlib.suppress(AttributeError, ValueError, OSError):  # not all systems tell
        return size > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return False


# --- what a file of `save` holds

_KIND = "executable"

# They say where and how a program runs or what is shown, not what it computes.
_OF_THE_HOST = (
    "cachePath enableEngineCaching log_dir max_repeat_logs connection_type ipu_version use_model ipu_id model_name "
    "random_seed sync_pattern engineOptions instrumentWithHardwareCycleCounter distributed_process_id ipuof_configs "
    "auto_round_num_ipus rearrangeAnchorsOnHost compilation_progress_bar_fn"
)

# Its names, shape, element type, and whether it is trained.
Weight = tuple[tuple[str, ...], tuple[int, ...], str, bool]


class Executable(msgspec.Struct, frozen=True):
    """What files have of a compiled program; `exported_model` is the pickled module with optimiser and options."""

    training: bool
    options: dict[str, str]
    arguments: tuple[tuple[Any, ...], tuple[str, ...], dict[str, Any]]
    weights: tuple[Weight, ...]
    digest: str
    warnings: tuple[str, ...]
    rng_state: list[int] | None
    groupings: dict[str, ReplicaGroups]
    exported_model: Tensor | None


def weights_of(graph: Graph) -> tuple[Weight, ...]:
    specs = [(v, graph.spec(v.tensor)) for v in graph.variables]
    return tuple((v.names, spec.shape, str(spec.dtype), v.trainable) for v, spec in specs)


def options_text(options: Options) -> dict[str, str]:
    chosen = {name: value for name, value in sorted(options.toDict().items()) if name not in _OF_THE_HOST.split()}
    return {name: str(int(value)) if isinstance(value, int) else repr(value) for name, value in chosen.items()}


def write(path: Path, executable: Executable) -> None:
    groupings = {name: asdict(groups) for name, groups in executable.groupings.items()}
    write_values(path, {"kind": _KIND, **msgspec.structs.asdict(executable), "groupings": groupings})


def read(path: Path) -> Executable:
    try:
        values = read_values(path)
        if values.get("kind") != _KIND:
            raise Invalid("it is a file of the executable cache, not of save()")
        return msgspec.convert(values, Executable)
    except Invalid as error:
        raise invalid(path, str(error)) from error
    except msgspec.ValidationError as error:
        raise invalid(path, _not_as_expected("its contents do not follow its format", error)) from error


def check(
    executable: Executable, path: Path, options: Options, groupings: Mapping[str, ReplicaGroups], *, training: bool
) -> None:
    theirs = executable.groupings
    differing = sorted(n for n in theirs.keys() | groupings.keys() if theirs.get(n) != groupings.get(n))
    if differing:
        groups = f"other replica groups of {', '.join(differing)} (call replicaGrouping() first)"
        raise invalid(path, f"it was compiled with {groups}")
    kinds = {True: "poptorch.trainingModel", False: "poptorch.inferenceModel"}
    if executable.training != training:
        raise invalid(path, f"it was compiled by {kinds[executable.training]}, this is a {kinds[training]}")
    here, there = options_text(options), executable.options
    differing = [
        f"{name} is {here.get(name, 'not set')}, in the file {there.get(name, 'not set')}"
        for name in sorted(here.keys() | there.keys())
        if here.get(name) != there.get(name)
    ]
    if differing:
        raise invalid(path, f"it was compiled with other options ({'; '.join(differing)})")


def check_program(executable: Executable, path: Path, graph: Graph) -> None:
    for here, saved in zip_longest(weights_of(graph), executable.weights):
        if here != saved:
            raise invalid(path, f"the model's weights are others: {_shown(here)} here, {_shown(saved)} in the file")
    if digest_of(graph) != executable.digest:
        other = "what forward computes, or where the execution strategy places it, is not the same"
        raise invalid(path, f"it was compiled from another model: {other}")


def _shown(weight: Weight | None) -> str:
    if weight is None:
        return "none"
    names, shape, dtype, trained = weight
    return f"{names[0]} {list(shape)} {dtype}{'' if trained else ' (not trained)'}"


# --- modules

_CONTAINERS = (dict, frozenset, set, slice, object, functools.partial, collections.defaultdict)
# Pickles of wrapped modules use the last. It makes an empty object of a class, which must itself be allowed.
_HARMLESS: tuple[Any, ...] = (*_CONTAINERS, copyreg._reconstructor)  # type: ignore[attr-defined]  # not in typeshed
_PLAIN = {f"{value.__module__}.{value.__qualname__}": value for value in _HARMLESS}
# Their classes are settings and carry no code; the same holds for classes derived from the second, in any package.
_SETTINGS = ("poptorch.options", "poptorch.enums", "poptorch.optim", "poptorch.ops.blocks", "torch.optim")
_DERIVED_SETTINGS = (Options, _DistributedOptions)
# Modules of these packages run code that they carry with them.
_CARRIERS = ("torch.fx", "torch.jit", "torch.package", "torch.export", "torch._dynamo", "torch._inductor")


def pickled(module: nn.Module, optimizer: Any, options: Options) -> Tensor:
    """Return module, optimiser and options as `torch.save` writes them, as a tensor of bytes."""
    restore_attributes(module)
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
    try:
        if not data.is_contiguous():
            raise Invalid("it would unpack to more than its own size")
        content = data.numpy().tobytes()
        if weights_only:
            _check_size(content)
        allowed = _allowed(content, path) if weights_only else []
        with torch.serialization.safe_globals(allowed):
            parts = torch.load(io.BytesIO(content), weights_only=weights_only)
    except Error:
        raise
    except Invalid as error:
        raise invalid(path, str(error)) from error
    except Exception as error:  # a damaged or hostile pickle can raise anything
        raise invalid(path, f"its model cannot be read ({type(error).__name__}: {error})") from error
    match parts:
        case {"model": nn.Module(), "optimizer": torch.optim.Optimizer() | None, "options": Options()}:
            return parts["model"], parts["optimizer"], parts["options"]
    raise invalid(path, "its model has no known form")


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
