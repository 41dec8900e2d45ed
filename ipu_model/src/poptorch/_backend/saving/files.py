"""Files of `save`: what they hold, and the rules under which a program of one fits a model and its options."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ipu_model import stored
from ipu_model.capture.variables import slots_of
from ipu_model.compute.gradients import ReplicaGroups
from ipu_model.compute.randomness import RandomStreams
from ipu_model.errors import Error
from ipu_model.graph import Graph, TensorSpec
from poptorch._args_parser import BoundArguments
from poptorch._backend.saving.versions import check_versions, versions
from poptorch._backend.weights import groups_of
from poptorch._impl import createPoptorchError
from poptorch.enums import CommGroupType, VariableRetrievalMode
from poptorch.options import Options

_logger = logging.getLogger("poptorch::python")

_KIND, _MODEL = "executable", "exported_model"

# They say where and how a program runs or what is shown, not what it computes.
_OF_THE_HOST = frozenset({
    "cachePath", "enableEngineCaching", "log_dir", "max_repeat_logs", "connection_type", "ipu_version", "use_model",
    "ipu_id", "model_name", "random_seed", "sync_pattern", "engineOptions", "instrumentWithHardwareCycleCounter",
    "distributed_process_id", "ipuof_configs", "auto_round_num_ipus", "rearrangeAnchorsOnHost",
})  # fmt: skip


@dataclass(frozen=True)
class Executable:
    """A compiled program as a file holds it; `model` is the pickled module with optimiser and options, if exported.

    Without a `graph` the file only says what the program was compiled for.
    """

    training: bool
    options: dict[str, str]
    arguments: BoundArguments
    graph: Graph | None
    model_key: str | None
    rng_state: list[int] | None
    groupings: Mapping[str, ReplicaGroups]
    model: Tensor | None


@dataclass(frozen=True)
class KnownProgram:
    """A program that need not be traced, and the digest of the model that it was traced from, where that matters."""

    graph: Graph | None
    key: str | None
    path: Path

    def checked(self, key: str | None, specs: Sequence[TensorSpec]) -> Graph | None:
        """Return the graph, after comparing with the model's own digest and micro-batch.

        Raises:
            Error: "Invalid file", and what differs.
        """
        if self.graph is not None and list(self.graph.inputs) != list(specs):
            raise invalid(self.path, "its program is for micro-batches of another size")
        if None not in (key, self.key) and key != self.key:
            raise invalid(
                self.path,
                "it was compiled from another model: code, attributes or constants of the module, or the execution "
                "strategy, are not the same (or the Python version is not)",
            )
        return self.graph


def invalid(path: Path, what: str) -> Exception:
    """Return the error for a file that cannot be used."""
    return createPoptorchError(
        f"Invalid file {path}: {what}. Export it again with compileAndExport or save, from the model and options that "
        "it is loaded into."
    )


@contextlib.contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Make "Invalid file" of any error of the body, which uses what somebody else may have written.

    PopTorch's own errors, of which the program may be the cause, only get the file's name added.
    """
    try:
        yield
    except AssertionError:
        raise
    except Error as error:
        if str(path) in error.message:
            raise
        raise createPoptorchError(f"{error.message} The program is that of the file {path}.") from error
    except Exception as error:
        what = f"what it holds cannot be used ({type(error).__name__}: {str(error).partition(chr(10))[0]:.200})"
        raise invalid(path, what) from error


def path_to_read(filename: str | os.PathLike[str]) -> Path:
    """Return the file that `save` made for this name."""
    path = Path(filename)
    return path / "model.poptorch" if path.is_dir() else path


def options_text(options: Options) -> dict[str, str]:
    """Return the options that a program was compiled with, by name, as text."""
    return {name: _text(value) for name, value in sorted(options.toDict().items()) if name not in _OF_THE_HOST}


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, int) else repr(value)


def write(path: Path, executable: Executable) -> None:
    """Write an executable; a program that the format cannot hold is left out and traced again when it is loaded.

    Raises:
        Error: arguments that the format cannot hold.
        OSError: the file cannot be written.
    """
    arguments = executable.arguments
    try:
        form = stored.encode((arguments.positional, arguments.names, dict(arguments.keywords)))
    except stored.NotStorable as reason:
        raise createPoptorchError(
            f"save: the model was compiled for {reason}, which a file cannot hold. Pass tensors, numbers, text, "
            "tuples, lists or dicts to forward, or save model.state_dict()."
        ) from reason
    graph: dict[str, Any] | None = None
    tensors: dict[str, Tensor] = {}
    try:
        assert executable.graph is not None
        graph, tensors = stored.graph_form(executable.graph)
    except stored.NotStorable as reason:
        _logger.warning("save: the program has %s, which a file cannot hold: it is traced again when loaded.", reason)
    values = {
        "kind": _KIND, **versions(), "training": executable.training, "options": executable.options, "arguments": form,
        "graph": graph, "model_key": executable.model_key, "rng_state": executable.rng_state,
        "groupings": {name: astuple(groups) for name, groups in executable.groupings.items()},
    }  # fmt: skip
    model = {} if executable.model is None else {_MODEL: executable.model}
    stored.write(path, stored.Contents(values, {**tensors, **model}))


def read(path: Path) -> Executable:
    """Read what `write` wrote; the exported module stays pickled.

    Raises:
        Error: "Invalid file", and why.
        OSError: the file cannot be read.
    """
    try:
        contents = stored.read(path)
        with stored.damage_found("its contents do not follow its format"):
            return _executable(contents)
    except stored.Invalid as error:
        raise invalid(path, str(error)) from error


def _executable(contents: stored.Contents) -> Executable:
    values, tensors = contents.values, dict(contents.tensors)
    if values.get("kind") != _KIND:
        raise stored.Invalid("it is a file of the executable cache, not of save()")
    check_versions(values)
    model = tensors.pop(_MODEL, None)
    training, key, rng_state = values["training"], values["model_key"], values["rng_state"]
    if not isinstance(training, bool) or not isinstance(key, (str, type(None))):
        raise stored.Invalid("values of no known form")
    if rng_state is not None and [type(word) for word in rng_state] != [int] * max(1, len(rng_state)):
        raise stored.Invalid("a random state of no known form")
    return Executable(
        training=training,
        options={str(name): str(text) for name, text in values["options"].items()},
        arguments=_arguments(*stored.decode(values["arguments"])),
        graph=None if values["graph"] is None else stored.graph_of(values["graph"], tensors),
        model_key=key,
        rng_state=rng_state,
        groupings={str(name): _groups(*parts) for name, parts in values["groupings"].items()},
        model=model,
    )


def _arguments(positional: Any, names: Any, keywords: Any) -> BoundArguments:
    named = isinstance(keywords, dict) and all(isinstance(name, str) for name in (*names, *keywords))
    if not isinstance(positional, tuple) or not isinstance(names, tuple) or not named:
        raise stored.Invalid("arguments of no known form")
    return BoundArguments(positional, names, keywords)


def _groups(replicas: Any, size: Any, orthogonal: Any) -> ReplicaGroups:
    if [type(replicas), type(size), type(orthogonal)] != [int, int, bool] or size < 1:
        raise stored.Invalid("replica groups of no known form")
    return ReplicaGroups(replicas, size, orthogonal)


def check(executable: Executable, path: Path, module: nn.Module, options: Options, *, training: bool) -> None:
    """Compare what a program was compiled from with what it is loaded into.

    Raises:
        Error: "Invalid file", and everything that differs.
    """
    kinds = {True: "poptorch.trainingModel", False: "poptorch.inferenceModel"}
    if executable.training != training:
        raise invalid(path, f"it was compiled by {kinds[executable.training]}, this is a {kinds[training]}")
    here, there = options_text(options), executable.options
    differing = [
        f"{name} is {here.get(name, 'not set')}, in the file {there.get(name, 'not set')}"
        for name in sorted(here.keys() | there.keys())
        if here.get(name) != there.get(name)
    ]
    if differing:
        raise invalid(path, f"it was compiled with other options ({'; '.join(differing)})")
    if executable.graph is not None:
        _check_weights(executable.graph, path, module)


def check_rng_state(executable: Executable, path: Path, options: Options) -> None:
    """Check that a random state in a file is one, and for as many replicas as the options ask for.

    Raises:
        Error: "Invalid file".
    """
    streams = RandomStreams(0, options.replication_factor)
    if executable.training and options._backend.stochastic_rounding:
        streams.keep(torch.Generator(), reseeded=True)
    try:
        streams.restore(list(executable.rng_state or [0]))
    except ValueError as error:
        raise invalid(path, str(error)) from error


def groupings_for(
    executable: Executable, path: Path, module: nn.Module, options: Options
) -> Mapping[str, ReplicaGroups]:
    """Return the replica groups of a file's parameters, for the module that it was saved with.

    Raises:
        Error: "Invalid file": no such parameter, or not as many slices as the options' replicas have groups.
    """
    parameters = object.__getattribute__(module, "_parameters")
    for name, groups in executable.groupings.items():
        kind = CommGroupType.Orthogonal if groups.orthogonal else CommGroupType.Consecutive
        if not isinstance(parameters.get(name), nn.Parameter) or groups.replicas != options.replication_factor:
            raise invalid(path, f"its replica groups of {name} are of another model or of other options")
        try:
            groups_of(name, parameters[name], options, kind, groups.size, VariableRetrievalMode.OnePerGroup)
        except Error as error:
            raise invalid(path, error.message) from error
    return executable.groupings


def check_groupings(executable: Executable, path: Path, groupings: Mapping[str, ReplicaGroups]) -> None:
    """Compare the parameters of which groups of replicas train slices of their own.

    Raises:
        Error: "Invalid file", and the parameters that differ.
    """
    names = sorted(executable.groupings.keys() | groupings.keys())
    differing = [name for name in names if executable.groupings.get(name) != groupings.get(name)]
    if differing:
        raise invalid(
            path, f"it was compiled with other replica groups of {', '.join(differing)} (call replicaGrouping() first)"
        )


def _check_weights(graph: Graph, path: Path, module: nn.Module) -> None:
    compiled = {v.node: (v.names, v.spec.shape, v.spec.dtype, v.trainable) for v in graph.variables}
    own = {
        f"variable_{number}": (slot.names, slot.spec.shape, slot.spec.dtype, slot.trainable)
        for number, slot in enumerate(slots_of(module))
        if not slot.is_constant
    }
    for node in sorted(compiled.keys() | own.keys()):
        if compiled.get(node) != own.get(node):
            raise invalid(path, f"the model's weights are others: {_shown(own.get(node))} here, "
                                f"{_shown(compiled.get(node))} in the file")  # fmt: skip


def _shown(weight: tuple[Any, ...] | None) -> str:
    if weight is None:
        return "none"
    names, shape, dtype, trainable = weight
    return f"{names[0]} {list(shape)} {dtype}{'' if trainable else ' (not trained)'}"
