"""`save`, `compileAndExport` and `loadExecutable`: the part of `PoplarExecutor` that writes and reads files."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poptorch import optim
from poptorch._backend.saving import files
from poptorch._backend.saving.exported import pickled
from poptorch._backend.saving.files import Executable, KnownProgram
from poptorch._backend.weights import one_slice_each
from poptorch._impl import createPoptorchError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from torch import nn

    from ipu_model.compute.session import Session
    from ipu_model.graph import Graph
    from poptorch._args_parser import BoundArguments
    from poptorch._backend.optimisation import Optimisation
    from poptorch._backend.weights import HostWeights
    from poptorch.options import Options

_logger = logging.getLogger("poptorch::python")

_FILE_IN_FOLDER = "model.poptorch"


class SavedExecutables:
    """Holds the methods of an executor that move its program to and from files."""

    _user_model: nn.Module
    _traced_model: nn.Module
    _options: Options
    _training: bool
    _session: Session | None
    _host: HostWeights
    _captured: Graph | None
    _model_key: str | None
    _arguments: BoundArguments | None
    _optimisation: Optimisation | None
    _rng_state: list[int] | None
    _has_run: bool
    rng_state: Any
    compile: Callable[..., None]
    _compile: Callable[..., None]
    _require_compiled: Callable[[], None]
    copyWeightsToHostIfNeeded: Callable[[], bool]

    def compileAndExport(
        self, filename: str | os.PathLike[str], *args: Any, export_model: bool = True, **kwargs: Any
    ) -> None:
        """Compile for these arguments, then `save` to `filename`.

        Raises:
            Error: what `compile` and `save` refuse.
        """
        self.compile(*args, **kwargs)
        self.save(filename, export_model)

    def save(self, filename: str | os.PathLike[str], export_model: bool = True, save_rng_state: bool = True) -> None:
        """Write the compiled program, and with `export_model` the module with its weights and optimiser.

        Missing folders are made; in an existing folder the file is called `model.poptorch`. What was there before
        stays until the new file is complete. Without `export_model` the file has no weights.

        Raises:
            Error: not compiled, arguments of a type that no file can hold, or a module that cannot be pickled.
            OSError: the file cannot be written.
        """
        self._require_compiled()
        assert self._captured is not None
        assert self._arguments is not None
        self.copyWeightsToHostIfNeeded()
        path = Path(filename)
        if path.is_dir():
            path = path / _FILE_IN_FOLDER
            _logger.warning("save: %s is an existing directory. The file is written to %s.", filename, path)
        optimizer = None if self._optimisation is None else self._optimisation.optimizer
        if export_model and self._has_run and not isinstance(optimizer, (optim.Optimizer, type(None))):
            _logger.warning(
                "save: the state of a torch.optim.%s on the device cannot be read, and starts anew when the model is "
                "loaded. Use poptorch.optim to keep it.",
                type(optimizer).__name__,
            )
        executable = Executable(
            training=self._training,
            options=files.options_text(self._options),
            arguments=self._arguments,
            graph=self._captured,
            model_key=self._model_key,
            rng_state=self.rng_state if save_rng_state else None,
            groupings=self._host.groupings,
            model=pickled(self._user_model, optimizer, self._options) if export_model else None,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, executable)

    def loadExecutable(self, filename: str | os.PathLike[str]) -> None:
        """Use the program of a file instead of compiling; weights and optimiser are those of this process.

        Nothing that the file contains is executed, and no trust in where it comes from is needed to read it: a module
        that was exported in it is not looked at. What the model then computes is the program of PyTorch's tensor ops in
        the file: take it from those who may decide on that.

        Raises:
            Error: compiled already, or "Invalid file": no such file format, truncated, corrupt, of another version, of
                another model or made with other options; the text names what differs.
            OSError: the file cannot be read.
        """
        if self._session is not None:
            raise createPoptorchError("loadExecutable: the model is compiled already. Call destroy() first.")
        path = files.path_to_read(filename)
        self._use(files.read(path), path, same_code=True)

    def _use(self, executable: Executable, path: Path, *, same_code: bool) -> None:
        """Compile with the program of a file; with `same_code` the module must be the one that was traced."""
        # Without a graph what happens is the program's own trace, whose errors are its own, too.
        with contextlib.nullcontext() if executable.graph is None else files.damage_named(path):
            self._fit(executable, path, same_code)
            key = executable.model_key if same_code else None
            self._compile(executable.arguments, KnownProgram(executable.graph, key, path))

    def _fit(self, executable: Executable, path: Path, same_code: bool) -> None:
        """Check that a file's program is for this model; take over what else it says."""
        if not same_code:
            self._host.groupings.update(files.groupings_for(executable, path, self._traced_model, self._options))
        files.check_groupings(executable, path, self._host.groupings)
        with one_slice_each(self._traced_model, self._host.groupings):
            files.check(executable, path, self._traced_model, self._options, training=self._training)
        if executable.rng_state is not None:
            files.check_rng_state(executable, path, self._options)
            self._rng_state = list(executable.rng_state)
