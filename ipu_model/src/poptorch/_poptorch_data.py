"""What a file of `save` holds, and the rules under which one fits a model and its options.

A file holds no program: forward is traced whenever a model is compiled, and the digest in the file tells whether the
program is the one that was saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from torch import Tensor, nn

from ipu_model import __version__
from ipu_model.capture.describe import digest_of
from ipu_model.capture.graph import Graph
from ipu_model.compute.gradients import ReplicaGroups
from ipu_model.compute.randomness import RandomStreams
from ipu_model.errors import Error
from poptorch._args_parser import BoundArguments
from poptorch._backend import files
from poptorch._backend.files import invalid
from poptorch._backend.weights import groups_of
from poptorch.enums import CommGroupType, VariableRetrievalMode
from poptorch.options import Options

_KIND = "executable"

# They say where and how a program runs or what is shown, not what it computes.
_OF_THE_HOST = (
    "cachePath enableEngineCaching log_dir max_repeat_logs connection_type ipu_version use_model ipu_id model_name "
    "random_seed sync_pattern engineOptions instrumentWithHardwareCycleCounter distributed_process_id ipuof_configs "
    "auto_round_num_ipus rearrangeAnchorsOnHost compilation_progress_bar_fn"
)

# Its names, shape, element type, and whether it is trained.
Weight = tuple[tuple[str, ...], tuple[int, ...], str, bool]
# The fields of `ReplicaGroups`.
Groups = tuple[int, Annotated[int, msgspec.Meta(ge=1)], bool]


class Executable(msgspec.Struct, frozen=True):
    """What is known of a compiled program, in the form in which files have it.

    `arguments` are the fields of `BoundArguments`; `digest` is that of the program, `warnings` what was said when it
    was compiled, `exported_model` the pickled module with optimiser and options.
    """

    training: bool
    options: dict[str, str]
    arguments: tuple[tuple[Any, ...], tuple[str, ...], dict[str, Any]]
    weights: tuple[Weight, ...]
    digest: str
    warnings: tuple[str, ...]
    rng_state: list[int] | None
    groupings: dict[str, Groups]
    exported_model: Tensor | None

    @property
    def bound_arguments(self) -> BoundArguments:
        return BoundArguments(*self.arguments)

    @property
    def replica_groups(self) -> dict[str, ReplicaGroups]:
        return {name: ReplicaGroups(*parts) for name, parts in self.groupings.items()}


def weights_of(graph: Graph) -> tuple[Weight, ...]:
    specs = [(v, graph.spec(v.tensor)) for v in graph.variables]
    return tuple((v.names, spec.shape, str(spec.dtype), v.trainable) for v, spec in specs)


def options_text(options: Options) -> dict[str, str]:
    """Return the options that a program was compiled with, by name, as text."""
    chosen = {name: value for name, value in sorted(options.toDict().items()) if name not in _OF_THE_HOST.split()}
    return {name: str(int(value)) if isinstance(value, int) else repr(value) for name, value in chosen.items()}


def versions() -> dict[str, str]:
    return {"poptorch": __version__, "torch": str(torch.__version__)}


def check_versions(values: Mapping[str, Any]) -> None:
    for name, here in versions().items():
        if values.get(name) != here:
            shown = "PopTorch" if name == "poptorch" else name
            raise files.OtherVersion(f"{shown} version mismatch: written with {values.get(name)}, this is {here}")


def write(path: Path, executable: Executable) -> None:
    """Write an executable. Raises `Error`: arguments that a file cannot hold; `OSError`: the file cannot be written."""
    try:
        files.write(path, {"kind": _KIND, **versions(), **msgspec.structs.asdict(executable)})
    except files.NotStorable as reason:
        raise Error(
            f"save: the model was compiled for {reason}, which a file cannot hold. Pass tensors, numbers, text, "
            "tuples, lists or dicts to forward, or save model.state_dict()."
        ) from reason


def read(path: Path) -> Executable:
    """Read what `write` wrote; the exported module stays pickled. Raises `Error`: "Invalid file", and why."""
    try:
        values = files.read(path)
        check_versions(values)
        if values.get("kind") != _KIND:
            raise files.Invalid("it is a file of the executable cache, not of save()")
        return msgspec.convert(values, Executable)
    except files.Invalid as error:
        raise invalid(path, str(error)) from error
    except msgspec.ValidationError as error:
        raise invalid(path, files.not_as_expected("its contents do not follow its format", error)) from error


def check(
    executable: Executable, path: Path, options: Options, groupings: Mapping[str, ReplicaGroups], *, training: bool
) -> None:
    """Compare kind, options and replica groups of what was saved with those of the model that it is loaded into."""
    there_groups = executable.replica_groups
    differing = sorted(n for n in there_groups.keys() | groupings.keys() if there_groups.get(n) != groupings.get(n))
    if differing:
        groups = f"other replica groups of {', '.join(differing)} (call replicaGrouping() first)"
        raise invalid(path, f"it was compiled with {groups}")
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
    if executable.rng_state is not None:
        streams = RandomStreams(0, options.replication_factor)
        if training and options._backend.stochastic_rounding:
            streams.keep(torch.Generator(), reseeded=True)
        try:
            streams.restore(executable.rng_state)
        except ValueError as error:
            raise invalid(path, str(error)) from error


def check_program(executable: Executable, path: Path, graph: Graph) -> None:
    own, there = weights_of(graph), executable.weights
    for number in range(max(len(own), len(there))):
        here, saved = own[number : number + 1], there[number : number + 1]
        if here != saved:
            raise invalid(path, f"the model's weights are others: {_shown(here)} here, {_shown(saved)} in the file")
    if digest_of(graph) != executable.digest:
        other = "what forward computes, or where the execution strategy places it, is not the same"
        raise invalid(path, f"it was compiled from another model: {other}")


def _shown(weight: tuple[Weight, ...]) -> str:
    if not weight:
        return "none"
    ((names, shape, dtype, trained),) = weight
    return f"{names[0]} {list(shape)} {dtype}{'' if trained else ' (not trained)'}"


def check_groupings(executable: Executable, path: Path, module: nn.Module, options: Options) -> None:
    """Check the replica groups of a file's parameters for the module that it was saved with."""
    parameters = object.__getattribute__(module, "_parameters")
    for name, groups in executable.replica_groups.items():
        kind = CommGroupType.Orthogonal if groups.orthogonal else CommGroupType.Consecutive
        if not isinstance(parameters.get(name), nn.Parameter) or groups.replicas != options.replication_factor:
            raise invalid(path, f"its replica groups of {name} are of another model or of other options")
        try:
            groups_of(name, parameters[name], options, kind, groups.size, VariableRetrievalMode.OnePerGroup)
        except Error as error:
            raise invalid(path, error.message) from error
