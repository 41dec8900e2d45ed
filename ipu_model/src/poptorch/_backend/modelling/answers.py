"""The part of `PoplarExecutor` that the performance model answers: profile, latencies, cycles, compilation time."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING

from poptorch._impl import createPoptorchError
from poptorch._logging import native_logger

if TYPE_CHECKING:
    from torch import nn

    from ipu_model.graph import Graph
    from ipu_model.profiling.data import Profile
    from ipu_model.program import Program
    from poptorch._backend.modelling.timing import Latency, PerfCounters
    from poptorch._backend.optimisation import Optimisation
    from poptorch.options import Options


class ModelledAnswers:
    """Holds the compiled program as the performance model sees it, and the profiles made of it.

    All seconds and cycles are modelled: they are those of an IPU system, whatever the call took here.
    """

    _options: Options
    _training: bool
    _has_run: bool
    _was_stored: bool
    _graph: Graph | None
    _optimisation: Optimisation | None
    _traced_model: nn.Module
    _program: Program | None

    # --- timing calls
    # ------------------------------------------------------------------------------------------

    def getPerfCounters(self) -> PerfCounters:
        """Return the modelled times of the last run's transfers, in seconds since its start.

        A dict of `input`, `input_complete`, `output` and `output_complete`: for each tensor a list of times, one
        for each micro-batch of each replica (outputs: for each result that comes back). The lists are empty
        before the first run and with synthetic data.
        """
        from poptorch._backend.modelling import timing

        if not self._has_run:
            return timing.empty_counters()
        return timing.perf_counters(self._modelled_program(), self._modelled_profile())

    def getLatency(self) -> Latency:
        """Return least, greatest and average modelled seconds from an input's departure to its output's arrival."""
        return self._latency("input", "output_complete")

    def getHostIpuLatency(self) -> Latency:
        """Return least, greatest and average modelled seconds that inputs take to the device."""
        return self._latency("input", "input_complete")

    def getComputeLatency(self) -> Latency:
        """Return least, greatest and average modelled seconds between inputs' arrival and outputs' departure."""
        return self._latency("input_complete", "output")

    def getIpuHostLatency(self) -> Latency:
        """Return least, greatest and average modelled seconds that outputs take to the host."""
        return self._latency("output", "output_complete")

    def _latency(self, start: str, end: str) -> Latency:
        from poptorch._backend.modelling import timing

        return timing.latency(self.getPerfCounters(), start, end)

    def cycleCount(self) -> int:
        """Return the modelled cycles of one run on each IPU.

        Raises:
            Error: `logCycleCount` is off, or nothing has run.
        """
        if not self._counts_cycles:
            raise createPoptorchError(
                "Cycle count logging is disabled. Switch it on with poptorch.Options().logCycleCount(True)."
            )
        if not self._has_run:
            raise createPoptorchError("Please run the model at least once before asking for its cycle count.")
        profile = self._modelled_profile()
        return max(1, round(profile.device_seconds_per_call * profile.machine.clock_hz))

    def compilationTime(self) -> timedelta:
        """Return how long Graphcore's compiler would take, modelled; here compilation takes a second or less.

        Zero if the program came from the executable cache or from a file: nothing was compiled then.

        Raises:
            Error: not compiled, or the progress bar is off.
        """
        if self._program is None:
            raise createPoptorchError("Please compile the model before asking how long that took.")
        if not self._options._show_compilation_progress_bar:
            raise createPoptorchError(
                "compilationTime needs the progress bar: poptorch.Options().showCompilationProgressBar(True)."
            )
        return timedelta(seconds=0.0 if self._was_stored else self._modelled_profile().compilation_seconds)

    @property
    def _counts_cycles(self) -> bool:
        return self._options._backend.counts_cycles

    def _log_cycles(self) -> None:
        """After a run: write its cycles to the log, if they are counted and somebody reads them."""
        if self._counts_cycles and native_logger.isEnabledFor(logging.DEBUG):
            native_logger.debug("Total number of IPU cycles: %d", self.cycleCount())

    # --- program and profile
    # -----------------------------------------------------------------------------------

    def _modelled_program(self) -> Program:
        """Return what the performance model reads: the compiled program.

        Raises:
            Error: not compiled.
        """
        if self._program is None:
            raise createPoptorchError(
                "Model has not been compiled or has been destroyed, so there is no program to model. Call the model, "
                "or compile() it, first; ipu_model.profile_module(module, inputs, options) needs neither."
            )
        return self._program

    def _modelled_profile(self) -> Profile:
        """Return the profile of the compiled program.

        Raises:
            Error: not compiled.
        """
        from ipu_model.explore.profile import profile_of

        return profile_of(self._modelled_program())

    def _model(self, graph: Graph) -> None:
        """At the end of a compilation: make the program, check its memory, write the report that was asked for.

        Raises:
            Error: engine options that cannot be read, a machine that is too small, or a program that does not
                fit into its memory.
        """
        from poptorch._backend.modelling.memory import check_memory
        from poptorch._backend.modelling.program import program_of

        optimisation = self._optimisation
        engine = self._options._backend.engine_options
        self._program = program_of(
            graph,
            self._options,
            training=self._training,
            optimiser=optimisation.spec if optimisation is not None else None,
            groups=optimisation.groups(self._traced_model) if optimisation is not None else None,
        )
        check_memory(self._program, allowed=engine.allow_out_of_memory)
        if engine.report:
            from poptorch._backend.modelling.auto_report import write

            write(self._program, self._modelled_profile(), engine)

    def _forget_model(self) -> None:
        self._program = None
