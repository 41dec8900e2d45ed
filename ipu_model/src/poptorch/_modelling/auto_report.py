"""The report that profiling leaves behind, with advice.

`enableProfiling(directory)` gives each model a folder in it. A directory that the environment names holds the report
itself, and folders for further models of other names.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from ipu_model.errors import Error
from ipu_model.profiling import json_form
from ipu_model.profiling.data import Profile
from ipu_model.program import Program
from poptorch._errors import createPoptorchError
from poptorch._modelling.engine_options import EngineOptions

_logger = logging.getLogger("poptorch::python")


def write(program: Program, profile: Profile, engine: EngineOptions) -> Path:
    """Write the report of a program and return its folder; without `engine.execution` it holds no timeline.

    Raises:
        Error: the folder cannot be written.
    """
    from ipu_model.adviser import advise
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
    _logger.info("The profiling report of the model '%s' is in %s.", profile.name, folder)
    return folder


def _folder(name: str, engine: EngineOptions) -> Path:
    directory = Path(engine.directory)
    if not engine.from_environment:
        return directory / name
    try:
        taken_by = json_form.read(directory / json_form.FILE_NAME).name
    except Error:
        return directory
    return directory if taken_by == name else directory / name
