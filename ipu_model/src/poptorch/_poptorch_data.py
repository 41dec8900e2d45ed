"""Files of `save`: what they hold, and the rules under which one fits a model and its options.

A file holds no program: forward is traced whenever a model is compiled, and the digest in the file tells whether the
program is the one that was saved.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ipu_model import __version__, stored
from ipu_model.capture.digest import digest_of
from ipu_model.capture.graph import Graph
from ipu_model.compute.gradients import ReplicaGroups
from ipu_model.compute.randomness import RandomStreams
from ipu_model.errors import Error
from poptorch._args_parser import BoundArguments
from poptorch._backend.weights import groups_of
from poptorch._impl import createPoptorchError
from poptorch.enums import CommGroupType, VariableRetrievalMode
from poptorch.options import Options

_KIND, _MODEL = "executable", "exported_model"

# They say where and how a program runs or what is shown, not what it computes.
_OF_THE_HOST = frozenset({
    "cachePath", "enableEngineCaching", "log_dir", "max_repeat_logs", "connection_type", "ipu_version", "use_model",
    "ipu_id", "model_name", "random_seed", "sync_pattern", "engineOptions", "instrumentWithHardwareCycleCounter",
    "distributed_process_id", "ipuof_configs", "auto_round_num_ipus", "rearrangeAnchorsOnHost",
    "compilation_progress_bar_fn",
})  # fmt: skip


@dataclass(frozen=True)
class Executable:
    """What is known of a compiled program; `model` is the pickled module with optimiser and options, if exported.

    `weights` are names, shape, element type and whether it is trained, of each; `digest` that of the program, and
    `warnings` what was said when it was compiled.
    """

    training: bool
    options: Mapping[str, str]
    arguments: BoundArguments
    weights: tuple[Weight, ...]
    digest: str
    warnings: tuple[str, ...]
    rng_state: list[int] | None
    groupings: Mapping[str, ReplicaGroups]
    model: Tensor | None


Weight = tuple[tuple[str, ...], tuple[int, ...], str, bool]


def weights_of(graph: Graph) -> tuple[Weight, ...]:
    """Return what a program's weights look like."""
    return tuple((v.names, v.spec.shape, str(v.spec.dtype), v.trainable) for v in graph.variables)


def versions() -> dict[str, str]:
    """Return the versions that a file must have been written with to be used here."""
    return {"poptorch": __version__, "torch": str(torch.__version__)}


def check_versions(values: Mapping[str, Any]) -> None:
    """Compare the versions in a file with those running.

    Raises:
        OtherVersion: names both.
    """
    for name, here in versions().items():
        if values.get(name) != here:
            shown = {"poptorch": "PopTorch"}.get(name, name)
            raise stored.OtherVersion(f"{shown} version mismatch: written with {values.get(name)}, this is {here}")


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
    except AssertionError as error:
        if str(path) in str(error):
            raise
        raise AssertionError(f"{error} The program comes from the file {path}.") from error
    except Error as error:
        if str(path) in error.message:
            raise
        raise createPoptorchError(f"{error.message} The program comes from the file {path}.") from error
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
    """Write an executable.

    Raises:
        Error: arguments that a file cannot hold.
        OSError: the file cannot be written.
    """
    arguments = executable.arguments
    values = {
        "kind": _KIND, **versions(), "training": executable.training, "options": dict(executable.options),
        "arguments": (arguments.positional, arguments.names, dict(arguments.keywords)),
        "weights": executable.weights, "digest": executable.digest, "warnings": executable.warnings,
        "rng_state": executable.rng_state,
        "groupings": {name: astuple(groups) for name, groups in executable.groupings.items()},
        _MODEL: executable.model,
    }  # fmt: skip
    try:
        stored.write(path, values)
    except stored.NotStorable as reason:
        raise createPoptorchError(
            f"save: the model was compiled for {reason}, which a file cannot hold. Pass tensors, numbers, text, "
            "tuples, lists or dicts to forward, or save model.state_dict()."
        ) from reason


def read(path: Path) -> Executable:
    """Read what `write` wrote; the exported module stays pickled.

    Raises:
        Error: "Invalid file", and why.
        OSError: the file cannot be read.
    """
    try:
        values = stored.read(path)
        check_versions(values)
        if values.get("kind") != _KIND:
            raise stored.Invalid("it is a file of the executable cache, not of save()")
        with stored.damage_found("its contents do not follow its format"):
            return _executable(values)
    except stored.Invalid as error:
        raise invalid(path, str(error)) from error


def _executable(values: Mapping[str, Any]) -> Executable:
    """Make an executable of values that somebody else may have written."""
    training, digest, rng_state, model = (values[name] for name in ("training", "digest", "rng_state", _MODEL))
    if not isinstance(training, bool) or not isinstance(digest, str) or not isinstance(model, (Tensor, type(None))):
        raise stored.Invalid("values of no known form")
    if rng_state is not None and [type(word) for word in rng_state] != [int] * max(1, len(rng_state)):
        raise stored.Invalid("a random state of no known form")
    return Executable(
        training=training,
        options={str(name): str(text) for name, text in values["options"].items()},
        arguments=_arguments(*values["arguments"]),
        weights=tuple((tuple(names), tuple(shape), str(dtype), bool(trained))
                      for names, shape, dtype, trained in values["weights"]),
        digest=digest,
        warnings=tuple(str(line) for line in values["warnings"]),
        rng_state=rng_state,
        groupings={str(name): _groups(*parts) for name, parts in values["groupings"].items()},
        model=model,
    )  # fmt: skip


def _arguments(positional: Any, names: Any, keywords: Any) -> BoundArguments:
    named = isinstance(keywords, dict) and all(isinstance(name, str) for name in (*names, *keywords))
    if not isinstance(positional, tuple) or not isinstance(names, tuple) or not named:
        raise stored.Invalid("arguments of no known form")
    return BoundArguments(positional, names, keywords)


def _groups(replicas: Any, size: Any, orthogonal: Any) -> ReplicaGroups:
    if [type(replicas), type(size), type(orthogonal)] != [int, int, bool] or size < 1:
        raise stored.Invalid("replica groups of no known form")
    return ReplicaGroups(replicas, size, orthogonal)


def check(executable: Executable, path: Path, options: Options, *, training: bool) -> None:
    """Compare kind and options of what was saved with those of the model that it is loaded into.

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


def check_program(executable: Executable, path: Path, graph: Graph) -> None:
    """Compare the program that was saved with the one that has been traced.

    Raises:
        Error: "Invalid file", and what differs.
    """
    own, there = weights_of(graph), executable.weights
    for number in range(max(len(own), len(there))):
        here, saved = own[number : number + 1], there[number : number + 1]
        if here != saved:
            raise invalid(path, f"the model's weights are others: {_shown(here)} here, {_shown(saved)} in the file")
    if digest_of(graph) != executable.digest:
        raise invalid(
            path,
            "it was compiled from another model: what forward computes, or where the execution strategy places it, is "
            "not the same",
        )


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


def _shown(weight: tuple[Weight, ...]) -> str:
    if not weight:
        return "none"
    ((names, shape, dtype, trained),) = weight
    return f"{names[0]} {list(shape)} {dtype}{'' if trained else ' (not trained)'}"
