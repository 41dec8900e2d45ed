"""Whether a program fits into memory: asked once, remembered in the executable cache, and reported on request.

The executable cache has one file for each program, named by a digest of the traced program, its options, and the source
code of the engine. It holds what was said of the program's memory, so that another process need not model it again, and
so that programs that count on a cache, such as `compilationTime() == 0`, run as on hardware.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import cache, partial
from pathlib import Path

import msgspec
from filelock import FileLock

import ipu_model
from ipu_model.capture.describe import digest_of
from ipu_model.capture.graph import Graph
from ipu_model.compute.gradients import ReplicaGroups
from ipu_model.errors import Error, OutOfMemory, replace_message
from ipu_model.predict import memory_of_program, profile_lately
from ipu_model.predict.memory.out_of_memory import note_on_memory, out_of_memory
from ipu_model.predict.program import Program
from ipu_model.report.files import FILE_NAME, read
from poptorch._logging import logger
from poptorch._poptorch_data import Invalid, options_text, read_values, versions, write_values
from poptorch.options import Options
from poptorch.options.backend import EngineOptions

_IGNORE_MEMORY = "IPU_MODEL_IGNORE_MEMORY"
_IGNORED = f"{_IGNORE_MEMORY} is set, so this machine runs the program all the same; IPUs could not."
_UNKNOWN = (
    "The IPU Model cannot say whether this program fits into memory: it failed with {} ({}), which is a bug in the "
    "model. The program's numbers are not affected; ipu_model.profile(model) shows where it happens."
)
_EXPLORE = (
    "ipu_model.make_it_fit({0}_model) searches for options that fit; {0}_model is what poptorch.{0}Model returned."
)
_LONGEST_NAME = 200
"""In bytes: file systems allow 255, and temporary file names need some of them."""

Warnings = tuple[str, ...]


def checked(
    program: Program, graph: Graph, options: Options, groupings: Mapping[str, ReplicaGroups], known: Warnings | None
) -> tuple[Warnings, bool]:
    """Return the warnings about a program's memory, and whether they were `known` or stored; write wanted reports."""
    ignored = os.environ.get(_IGNORE_MEMORY, "0") not in ("", "0")
    engine, folder = options._backend.engine_options, options._backend.cache_folder
    judge = partial(memory_warnings, program, ignored=ignored)
    try:
        if known is not None:
            warnings, was_stored = known, True
        elif folder is not None:
            directory = _cache_directory(Path(folder))
            warnings, was_stored = recalled(directory, _key_of(graph, program, options, ignored, groupings), judge)
        else:
            warnings, was_stored = judge(), False
    except OutOfMemory as refusal:
        replace_message(refusal, f"{refusal.message} {_next_steps(program, engine)}")
        raise
    for line in warnings:
        logger.warning("%s", line)
    if engine.report:
        _write_report(program, engine)
    return warnings, was_stored


def memory_warnings(program: Program, *, ignored: bool) -> Warnings:
    """Refuse a program that clearly does not fit, unless that is `ignored`; return a warning if it is close."""
    try:
        memory = memory_of_program(program)
    except Error:
        raise
    except Exception as problem:  # a bug in the model must not stop a program whose results are right
        return (_UNKNOWN.format(type(problem).__name__, problem),)
    error = out_of_memory(memory, program)
    if error is not None and not ignored:
        refusal = OutOfMemory(error.message, type=error.type)
        refusal.program = program
        raise refusal
    texts = (None if error is None else f"{error.message} {_IGNORED}", note_on_memory(memory, program))
    return tuple(text for text in texts if text is not None)


def _cache_directory(directory: Path) -> Path:
    hint = "Give enableExecutableCaching (or POPTORCH_CACHE_DIR) a directory that can be written, or None."
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AssertionError(f"The executable cache {directory} cannot be created: {error}. {hint}") from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise AssertionError(f"The executable cache {directory} is not writable. {hint}")
    return directory


def _key_of(graph: Graph, program: Program, options: Options, *more: object) -> str:
    settings = {field.name: getattr(program, field.name) for field in fields(program) if field.name != "step"}
    # Numbers that are streamed to the device, such as the learning rate, do not affect it.
    settings["optimiser"] = None if program.optimiser is None else program.optimiser.compiled_in
    decisive = (digest_of(graph), settings, options_text(options), versions(), _own_sources(), more)
    # Memory proportions are by number of IPU, and a sorted dict has keys of text only.
    plain = msgspec.to_builtins(
        decisive, enc_hook=lambda value: dict(value) if isinstance(value, Mapping) else repr(value), str_keys=True
    )
    return hashlib.blake2b(msgspec.msgpack.encode(plain, order="deterministic"), digest_size=20).hexdigest()


@cache
def _own_sources() -> str:
    # Any change of either package may change the warnings.
    digest = hashlib.blake2b(digest_size=16)
    for folder in (Path(str(ipu_model.__file__)).parent, Path(__file__).parent.parent):
        for file in sorted(folder.rglob("*.py")):
            digest.update(str(file.relative_to(folder)).encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


def recalled(directory: Path, key: str, judge: Callable[[], Warnings]) -> tuple[Warnings, bool]:
    """Return the warnings of a compilation, and true if the cache has them; if not, `judge`, and store the result."""
    path = directory / f"{key}.poptorch"
    known = _read(path, key)
    if known is not None:
        return known, True
    with contextlib.ExitStack() as stack:
        # While one process compiles, the others wait, if the file system supports locks.
        try:
            stack.enter_context(FileLock(directory / ".lock"))
        except (OSError, NotImplementedError) as error:
            logger.info("No lock on %s: %s.", directory, error)
        known = _read(path, key)
        if known is not None:
            return known, True
        warnings = judge()
        try:
            write_values(path, {"kind": "cache", "key": key, "warnings": warnings})
        except OSError as error:
            logger.warning("The compiled program could not be written to the executable cache: %s.", error)
        else:
            logger.info("The compiled program was written to %s.", path)
        return warnings, False


def _read(path: Path, key: str) -> Warnings | None:
    try:
        values = read_values(path)
        if (values.get("kind"), values.get("key")) != ("cache", key):
            raise Invalid("it holds another program")
        warnings = msgspec.convert(values.get("warnings"), Warnings)
    except FileNotFoundError:
        return None
    except (Invalid, msgspec.ValidationError, OSError) as error:
        logger.warning("%s in the executable cache cannot be used (%s): the model is compiled again.", path, error)
        return None
    logger.info("The compiled program was loaded from %s.", path)
    return warnings


def _write_report(program: Program, engine: EngineOptions) -> Path:
    from ipu_model.explore.advise import advise
    from ipu_model.report.files import write_report

    profile = profile_lately(program)
    folder = _report_folder(profile.name, engine)
    shown = profile if engine.execution else replace(profile, timeline=())
    try:
        write_report(shown, folder, advise(program, profile=profile))
    except Error as error:
        raise Error(
            f"No profiling report: {error.message} Choose another folder with "
            "poptorch.Options().enableProfiling(folder)."
        ) from error
    logger.info("The profiling report of the model '%s' is in %s.", profile.name, folder)
    return folder


def _report_folder(name: str, engine: EngineOptions) -> Path:
    plain = "".join(c if c.isprintable() and c not in "/\\" else "_" for c in name)
    while len(plain.encode()) > _LONGEST_NAME:
        plain = plain[:-1]
    directory = Path(engine.directory)
    own = directory / (plain if plain.strip(". ") else f"_{plain}")
    if not engine.from_environment:
        return own
    try:
        taken_by = read(directory / FILE_NAME).name
    except Error:
        return directory
    return directory if taken_by == name else own


def _next_steps(program: Program, engine: EngineOptions) -> str:
    explore = _EXPLORE.format("training" if program.training else "inference")
    ignore = f"With {_IGNORE_MEMORY}=1 this machine runs the program all the same."
    if not engine.report:
        return f"{explore} poptorch.Options().enableProfiling(folder) leaves a report of the memory. {ignore}"
    if not engine.allow_out_of_memory:
        return f"{explore} debug.allowOutOfMemory is off, so there is no report. {ignore}"
    try:
        folder = _write_report(program, engine)
    except Error as error:
        return f"{error.message} {explore} {ignore}"
    name = shlex.quote(str(folder))
    return f"The report is in {name}; python -m ipu_model fit {name} searches for options that fit. {ignore}"
