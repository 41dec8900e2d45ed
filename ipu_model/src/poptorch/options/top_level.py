"""`poptorch.Options`: everything a program can say about how its model is compiled and run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from poptorch._logging import logger
from poptorch.options import text
from poptorch.options.batch_settings import BatchSettings
from poptorch.options.device_settings import DeviceSettings
from poptorch.options.host_settings import HostSettings

if TYPE_CHECKING:
    from typing_extensions import Self


class Options(BatchSettings, DeviceSettings, HostSettings):
    """Settings of a model; setters return the object they were called on, so that calls chain.

    A new object starts from the defaults, then follows `POPTORCH_CACHE_DIR` and `POPTORCH_DEFAULT_OPTIONS`.
    """

    def __init__(self) -> None:
        super().__init__()
        cache_dir = os.environ.get("POPTORCH_CACHE_DIR")
        if cache_dir:
            logger.info("POPTORCH_CACHE_DIR is set: enabling executable caching in %s.", cache_dir)
            self.enableExecutableCaching(cache_dir)
        default_options = os.environ.get("POPTORCH_DEFAULT_OPTIONS")
        if default_options:
            logger.info("POPTORCH_DEFAULT_OPTIONS is set: applying %s.", default_options)
            self.from_json(default_options)

    def loadFromFile(self, filepath: str | os.PathLike[str]) -> Self:
        """Apply a file of statements, each written as it would be after `options.`.

        No trust in the file is needed: it can call setters with numbers, text, containers and PopTorch's own settings,
        and nothing else. (PopTorch runs any Python in it.) Setters may name folders that are written to later.

        Raises `ConfigFileError` for a syntax error and for anything but settings, and applies nothing then; other
        errors of a statement, or of opening the file, pass through.
        """
        text.run_statements(self, filepath)
        return self

    def from_json(self, string: str) -> Self:
        """Apply a JSON object such as `{"Precision.enableStochasticRounding": true}`.

        Accessors are public setters (and `_Popart.set`): the text cannot reach anything else.

        Raises `json.JSONDecodeError` for malformed JSON and `AttributeError` for an unknown accessor.
        """
        text.run_json(self, string)
        return self
