"""Training over several processes: all instances must compile the same program."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ipu_model.capture.graph import Graph
from ipu_model.compute.threads import Threads
from ipu_model.errors import Error
from ipu_model.instances import Group
from ipu_model.optimiser import OptimiserSpec
from ipu_model.step import Step
from poptorch._logging import logger
from poptorch.enums import ReductionType
from poptorch.options import Options


def agree(
    group: Group,
    graph: Graph,
    step: Step,
    options: Options,
    spec: OptimiserSpec,
    weights: Mapping[str, Tensor],
    seed: int,
) -> int:
    """Check that all instances compiled the same program; return instance 0's seed for the shared random numbers.

    Different initial weights cause only a warning: PopTorch does not broadcast them either. Raises `Error`: names what
    differs, with its values.
    """
    digest = hashlib.blake2b()
    for name, tensor in weights.items():
        digest.update(name.encode())
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    own = program_text(graph, step, options, spec), digest.hexdigest(), seed
    everyone = group.gathered_objects(own, "programs")
    check_programs([program for program, _, _ in everyone])
    if len({digest for _, digest, _ in everyone}) > 1:
        logger.warning(
            "The instances start from different weights, and stay different: PopTorch does not broadcast them. Use the "
            "same torch.manual_seed in all, load the same checkpoint, or horovod.torch.broadcast_parameters."
        )
    return int(everyone[0][2])


def fewest_threads(group: Group, threads: Threads) -> Threads:
    # With different numbers of threads the instances would compute weights that differ in their last bits.
    return replace(threads, number=min(group.gathered_objects(threads.number, "numbers of threads")))


def check_programs(programs: Sequence[Mapping[str, str]]) -> None:
    differences = []
    for name in programs[0]:
        values = [program[name] for program in programs]
        if len(set(values)) > 1:
            first = {value: values.index(value) for value in dict.fromkeys(values)}
            shown = ", ".join(f"{value} in instance {index}" for value, index in first.items())
            differences.append(f"{name}: {shown}")
    if differences:
        raise Error(
            "The instances compiled different programs, and cannot train together. "
            f"{'; '.join(differences)}. All instances must run the same model with the same options."
        )


def program_text(graph: Graph, step: Step, options: Options, spec: OptimiserSpec) -> dict[str, str]:
    training = options.Training
    specs = [(v.name, graph.spec(v.tensor)) for v in graph.variables]
    variables = [(name, tensor.shape, str(tensor.dtype)) for name, tensor in specs]
    shared = {name: value for name, value in vars(spec).items() if name not in ("default", "groups")}
    groups = []
    for hyper in (spec.default, *spec.groups):
        numbers = ", ".join(f"{name}={getattr(hyper, name)}" for name in spec.attributes)
        # The order of a set differs between processes.
        groups.append(f"{numbers}, variable: {' '.join(sorted(hyper.variable)) or 'none'}")
    return {
        "the model's parameters and buffers": _short(str(variables)),
        "the model's operations": _short(str([op.target for op in step.ops])),
        "the inputs of a micro-batch": str([list(spec.shape) for spec in graph.inputs]),
        "deviceIterations": str(options.device_iterations),
        "replicationFactor": str(options.replication_factor),
        "Training.gradientAccumulation": str(training.gradient_accumulation),
        "the reduction of gradients": ReductionType(training.accumulation_and_replication_reduction_type).name,
        "the strategy of means": training.meanAccumulationAndReplicationReductionStrategy.name,
        "automatic loss scaling": options._backend.loss_scaling_text,
        "the optimiser": f"{shared.pop('family')} {_short(str(shared))} with {'; '.join(dict.fromkeys(groups))}",
    }


def _short(text: str) -> str:
    return f"number {hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"
