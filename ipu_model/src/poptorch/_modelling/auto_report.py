"""The report that profiling leaves behind: `<directory>/<model name>/`."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from ipu_model.errors import Error
from ipu_model.profiling.data import Profile
from poptorch._errors import createPoptorchError
from poptorch._modelling.engine_options import EngineOptions

_logger = logging.getLogger("poptorch::python")


def write(profile: Profile, engine: EngineOptions) -> Path:
    """Write the report of a profile and return its folder; without `engine.execution` it holds no timeline.

    Raises:
        Error: the folder cannot be written.
    """
    from ipu_model.report.files import write_report

    folder = Path(engine.directory) / profile.name
    shown = profile if engine.execution else replace(profile, timeline=())
    try:
        write_report(shown, folder)
    except Error as error:
        raise createPoptorchError(
            f"No profiling report: {error.message} Choose another folder with "
            "poptorch.Options().enableProfiling(folder)."
        ) from error
    _logger.info("The profiling report of the model '%s' is in %s.", profile.name, folder)
    return folder
