"""The executable cache: the results of compilations beyond the trace, one file each, which processes may share.

The name of a file is a digest of the traced program, its options, and the source code of the engine. Forward is traced
every time, so a changed program never matches an old file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path

from filelock import FileLock

import ipu_model
from ipu_model import stored
from ipu_model.capture.digest import digest_of
from ipu_model.capture.graph import Graph
from ipu_model.predict.program import Program
from poptorch._logging import logger
from poptorch._poptorch_data import check_versions, options_text, versions
from poptorch.options import Options

_KIND = "cache"

Warnings = tuple[str, ...]


def cache_directory(options: Options) -> Path | None:
    """Return the cache directory, creating it if necessary; `None` without a cache.

    Raises:
        AssertionError: the path is not a directory, or is not writable.
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


def key_of(graph: Graph, program: Program, options: Options, *more: object) -> str:
    """Return the digest of a graph and of everything that affects its compilation; `more` is plain data.

    Numbers of the optimiser that are streamed to the device, such as the learning rate, do not affect it.
    """
    settings = {field.name: getattr(program, field.name) for field in fields(program) if field.name != "step"}
    settings["optimiser"] = None if program.optimiser is None else program.optimiser.compiled_in
    text = _text((digest_of(graph), settings, options_text(options), versions(), _own_sources(), more))
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


def _text(value: object) -> str:
    """Return plain data as text that is the same in every process; the order of sets is not."""
    if is_dataclass(value):
        return f"{type(value).__name__}({', '.join(_text(getattr(value, field.name)) for field in fields(value))})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_text(key)}: {_text(item)}' for key, item in value.items())}}}"
    if isinstance(value, (frozenset, set)):
        return f"{{{', '.join(sorted(map(_text, value)))}}}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_text, value))})"
    return repr(value)


def recalled(directory: Path, key: str, judge: Callable[[], Warnings]) -> tuple[Warnings, bool]:
    """Return the warnings of a compilation, and whether they came from the cache; if not, call `judge` and store them.

    While one process compiles, the others wait. An unusable file is replaced; if the cache cannot be written, a warning
    is logged.
    """
    path = directory / f"{key}.poptorch"
    known = _load(path, key)
    if known is not None:
        return known, True
    with _one_at_a_time(directory):
        known = _load(path, key)
        if known is not None:
            return known, True
        warnings = judge()
        _keep(path, key, warnings)
        return warnings, False


def _load(path: Path, key: str) -> Warnings | None:
    try:
        values = stored.read(path)
        check_versions(values)
        if (values.get("kind"), values.get("key")) != (_KIND, key):
            raise stored.Invalid("it holds another program")
        with stored.damage_found("its contents do not follow its format"):
            warnings = tuple(str(line) for line in values["warnings"])
    except FileNotFoundError:
        return None
    except (stored.Invalid, OSError) as error:
        logger.warning("%s in the executable cache cannot be used (%s): the model is compiled again.", path, error)
        return None
    logger.info("The compiled program was loaded from %s.", path)
    return warnings


def _keep(path: Path, key: str, warnings: Warnings) -> None:
    try:
        stored.write(path, {"kind": _KIND, "key": key, **versions(), "warnings": warnings})
    except OSError as error:
        logger.warning("The compiled program could not be written to the executable cache: %s.", error)
    else:
        logger.info("The compiled program was written to %s.", path)


@contextlib.contextmanager
def _one_at_a_time(directory: Path) -> Iterator[None]:
    """Let only one process at a time compile for this folder, if the file system supports locks."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(FileLock(directory / ".lock"))
        except (OSError, NotImplementedError) as error:
            logger.info("No lock on %s: %s.", directory, error)
        yield


@cache
def _own_sources() -> str:
    """Return a digest of the sources of the engine and of this package: any change may change the warnings."""
    digest = hashlib.blake2b(digest_size=16)
    for folder in (Path(str(ipu_model.__file__)).parent, Path(__file__).parent.parent):
        for file in sorted(folder.rglob("*.py")):
            digest.update(str(file.relative_to(folder)).encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()
