"""The executable cache: traced programs in a directory, one file each, that several processes may share."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import nn
from torch.nn.modules import module as _modules

from ipu_model import stored
from ipu_model.graph import Graph, TensorSpec
from poptorch._args_parser import BoundArguments
from poptorch._backend import compilation as _hooks
from poptorch._backend.saving.fingerprint import fingerprint
from poptorch._backend.saving.versions import check_versions, versions
from poptorch.options import Options

if sys.platform != "win32":
    import fcntl

_logger = logging.getLogger("poptorch::python")

_KIND = "trace"


def cache_directory(options: Options) -> Path | None:
    """Return where compiled programs are kept, making the directory if need be; `None` without a cache.

    Raises:
        AssertionError: no directory, or not writable.
    """
    folder = options._backend.cache_folder
    if folder is None:
        return None
    directory = Path(folder)
    hint = "Give enableExecutableCaching (or POPTORCH_CACHE_DIR) a directory that can be written, or None."
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AssertionError(f"The executable cache {directory} cannot be created: {error}. {hint}") from error
    assert os.access(directory, os.W_OK | os.X_OK), f"The executable cache {directory} is not writable. {hint}"
    return directory


def key_of(
    module: nn.Module, options: Options, arguments: BoundArguments, specs: Sequence[TensorSpec], *, training: bool
) -> str | None:
    """Return the digest of all that a trace depends on; `None`, with a line in the log, if that cannot be told.

    Options that only say how often the traced micro-batch is run are not part of it.
    """
    hooks = [*_hooks.before(), *_global_module_hooks()]
    look = arguments.with_tensors([torch.empty(spec.shape, dtype=spec.dtype, device="meta") for spec in specs])
    try:
        inputs = (look.positional, look.names, look.keywords)
        return fingerprint(module, options._execution_strategy, training, *inputs, hooks)
    except Exception as reason:  # it reads attributes of any object, and those may raise anything
        _logger.info("What a trace of this model depends on cannot be told: %s.", str(reason) or type(reason).__name__)
        return None


def _global_module_hooks() -> list[Any]:
    """Return the hooks that the program has put on all modules; traces in other threads have theirs there, too."""
    registries = (_modules._global_forward_pre_hooks, _modules._global_forward_hooks, _modules._global_backward_hooks)
    hooks = [hook for registry in registries for hook in registry.values()]
    return [hook for hook in hooks if not (getattr(hook, "__module__", None) or "").startswith("ipu_model.")]


def recalled(directory: Path, key: str, trace: Callable[[], Graph]) -> Graph:
    """Return the program of `key` from the cache, or trace it and keep it there.

    While one process traces, others that want the same program wait for it. A file that cannot be used, for
    whatever reason, is replaced; a cache that cannot be written costs nothing but a warning.
    """
    path = directory / f"{key}.poptorch"
    graph = _load(path, key)
    if graph is not None:
        return graph
    with _locked(directory / f"{key}.lock"):
        graph = _load(path, key)
        if graph is None:
            graph = trace()
            _keep(path, key, graph)
    return graph


def _load(path: Path, key: str) -> Graph | None:
    try:
        contents = stored.read(path)
        check_versions(contents.values)
        if (contents.values.get("kind"), contents.values.get("key")) != (_KIND, key):
            raise stored.Invalid("it holds another program")
        graph = stored.graph_of(contents.values.get("graph", {}), contents.tensors)
    except FileNotFoundError:
        return None
    except (stored.Invalid, OSError) as error:
        _logger.warning("%s in the executable cache cannot be used (%s): the model is compiled again.", path, error)
        return None
    _logger.info("The compiled program was loaded from %s.", path)
    return graph


def _keep(path: Path, key: str, graph: Graph) -> None:
    try:
        form, constants = stored.graph_form(graph)
        stored.write(path, stored.Contents({"kind": _KIND, "key": key, **versions(), "graph": form}, constants))
    except stored.NotStorable as error:
        _logger.info("The compiled program is not cached: it has %s.", error)
    except OSError as error:
        _logger.warning("The compiled program could not be written to the executable cache: %s.", error)
    else:
        _logger.info("The compiled program was written to %s.", path)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one process at a time run the body; the lock of a process that has died is free again.

    Where the system or the file system has no locks (as on Windows) the body runs at once: processes may then compile
    the same program twice, and the last one's file stays.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_lock_held(path))
        except OSError as error:
            _logger.info("No lock on %s: %s.", path, error)
        yield


@contextlib.contextmanager
def _lock_held(path: Path) -> Iterator[None]:
    if sys.platform == "win32":
        raise OSError("this system has no file locks that end with their process")
    while True:
        with open(path, "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not _is_at(path, file):
                continue
            try:
                yield
            finally:
                # Only who holds its lock removes the file: whoever waits for it then sees that it is gone.
                with contextlib.suppress(OSError):
                    path.unlink()
            return


def _is_at(path: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False
