"""The report that profiling leaves behind, with advice.

`enableProfiling(directory)` creates a folder for each model in the directory. If an environment variable names the
directory, the report goes directly into it, and further models with other names get folders there.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from ipu_model.errors import Error
from ipu_model.predict.profile import Profile
from ipu_model.predict.program import Program
from ipu_model.report.files import FILE_NAME, read
from poptorch._impl import createPoptorchError
from poptorch._logging import logger
from poptorch.options.backend import EngineOptions

_EXPLORE = (
    "ipu_model.make_it_fit({0}_model) searches for options that fit; {0}_model is what poptorch.{0}Model returned."
)
_LONGEST_NAME = 200
"""In bytes: file systems allow 255, and temporary file names need some of them."""


def write(program: Program, profile: Profile, engine: EngineOptions) -> Path:
    """Write the report of a program and return its folder; without `engine.execution` it holds no timeline.

    Raises:
        Error: the folder cannot be written.
    """
    from ipu_model.explore.advise import advise
    from ipu_model.report.files import write_report

    folder = _folder(profile.name, engine)
    shown = profile if engine.execution else replace(profile, timeline=())
    try:
        write_report(shown, folder, advise(program, profile=profile))
    except Error as error:
        raise createPoptorchError(
            f"No profiling report: {error.message} Choose another folder with "
            "poptorch.Options().enableProfiling(folder)."
        ) from error
    logger.info("The profiling report of the model '%s' is in %s.", profile.name, folder)
    return folder


def next_steps(program: Program, engine: EngineOptions) -> str:
    """Write the report of a program that does not fit, if one is asked for; return what its owner can do next."""
    from ipu_model.predict import profile_lately

    explore = _EXPLORE.format("training" if program.training else "inference")
    ignore = "With IPU_MODEL_IGNORE_MEMORY=1 this machine runs the program all the same."
    if not engine.report:
        return f"{explore} poptorch.Options().enableProfiling(folder) leaves a report of the memory. {ignore}"
    if not engine.allow_out_of_memory:
        return f"{explore} debug.allowOutOfMemory is off, so there is no report. {ignore}"
    try:
        folder = write(program, profile_lately(program), engine)
    except Error as error:
        return f"{error.message} {explore} {ignore}"
    name = shlex.quote(str(folder))
    return f"The report is in {name}; python -m ipu_model fit {name} searches for options that fit. {ignore}"


def _folder(name: str, engine: EngineOptions) -> Path:
    directory = Path(engine.directory)
    own = directory / _folder_name(name)
    if not engine.from_environment:
        return own
    try:
        taken_by = read(directory / FILE_NAME).name
    except Error:
        return directory
    return directory if taken_by == name else own


def _folder_name(name: str) -> str:
    """Return a valid folder name for a model's name, which may contain separators or other invalid characters."""
    plain = "".join(c if c.isprintable() and c not in "/\\" else "_" for c in name)
    while len(plain.encode()) > _LONGEST_NAME:
        plain = plain[:-1]
    return plain if plain.strip(". ") else f"_{plain}"
