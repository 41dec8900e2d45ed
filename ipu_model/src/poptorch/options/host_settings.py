"""The part of `Options` about the host: caches, logs, reports and checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poptorch._backend.modelling.engine_options import engine_options_of_environment
from poptorch._logging import logger
from poptorch.options.structure import OptionsStructure

if TYPE_CHECKING:
    from typing_extensions import Self

_NO_LIMIT = 2**64 - 1


class HostSettings(OptionsStructure):
    """Executable cache, log files, profiling and what the host checks or shows."""

    def enableExecutableCaching(self, path: str | None) -> Self:
        """Keep compiled programs in a directory; `None` switches the cache off."""
        if path is not None:
            self._popart.set("cachePath", path)
        self._popart.set("enableEngineCaching", path is not None)
        return self

    def enableProfiling(self, profile_dir: str | None = None) -> Self:
        """Write a report to `<profile_dir>/<model name>/` when a model is compiled (default: in the working directory).

        Warns about settings that `POPLAR_ENGINE_OPTIONS` overrides; raises `poptorch.Error` if that variable
        is not a JSON object.
        """
        self.checkIsFrozen()
        profiling = {
            "debug.allowOutOfMemory": "true",
            "autoReport.directory": profile_dir or ".",
            "autoReport.all": "true",
        }
        for name in sorted(profiling.keys() & engine_options_of_environment().keys()):
            logger.warning(
                "enableProfiling: %s is overridden by environment variable POPLAR_ENGINE_OPTIONS.",
                name,
            )
        self._popart.set("engineOptions", {**self._popart.options.get("engineOptions", {}), **profiling})
        return self

    def logCycleCount(self, log_cycle_count: bool) -> Self:
        """Count the (here: modelled) cycles of each run, for `cycleCount()` and the log."""
        self._popart.set("instrumentWithHardwareCycleCounter", log_cycle_count)
        return self

    def modelName(self, name: str) -> Self:
        """Set the model's name in reports (default: `training` or `inference`)."""
        return self.createOrSet(model_name=name)

    def logDir(self, log_dir: str) -> Self:
        """Set the directory that log files go to."""
        return self.set(log_dir=log_dir)

    def maxRepeatLogs(self, max_lines: int | None) -> Self:
        """Set how often the same log line is shown; `None` means without limit."""
        return self.set(max_repeat_logs=_NO_LIMIT if max_lines is None else max_lines)

    def showCompilationProgressBar(self, show: bool = True) -> Self:
        """Show a progress bar while compiling; `compilationTime()` needs it."""
        self.checkIsFrozen()
        self._show_compilation_progress_bar = show
        return self

    def relaxOptimizerAttributesChecks(self, relax: bool = True) -> Self:
        """Report unexpected optimiser attributes as debug lines instead of warnings."""
        self.checkIsFrozen()
        self._relax_optimizer_checks = relax
        return self

    def sourceLocationExcludes(self, excludes: list[str]) -> Self:
        """Replace the path fragments that are skipped when an op is traced back to user code."""
        self.checkIsFrozen()
        self._source_location_excludes = list(excludes)
        return self

    def appendToLocationExcludes(self, *excludes: str) -> Self:
        """Add path fragments to those skipped when an op is traced back to user code."""
        self.checkIsFrozen()
        self._source_location_excludes = [*self._source_location_excludes, *excludes]
        return self

    def disableModuleNamescope(self) -> Self:
        """Leave the path of modules out of the names of ops."""
        self.checkIsFrozen()
        self._module_namescope_enabled = False
        return self

    def updatableNamedBuffers(self, buffers: list[str]) -> Self:
        """Name the buffers that `copyNamedBuffersToDevice()` may refresh on their own."""
        self._popart.set("updatableNamedBuffers", buffers)
        return self
