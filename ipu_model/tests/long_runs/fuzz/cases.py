"""A random program as data, so that it can be printed and run again, and what it asks of PopTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

import poptorch
from fuzz.networks import KINDS, Network

_NAMES = ["float32", "float16", "float64", "bfloat16", "int64", "int32", "int8", "uint8", "bool", "complex64"]
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _NAMES}


@dataclass(frozen=True)
class Case:
    """One program: a network, its options, its data and what is done between its calls.

    A call has `rows` rows for each micro-batch and `surplus` rows that fit nowhere.
    """

    network: str = "perceptron"
    training: bool = False
    half: bool = False
    dtype: str = "float32"
    rows: int = 2
    surplus: int = 0
    layout: str = "contiguous"
    iterations: int = 1
    accumulation: int = 1
    replicas: int = 1
    group: int = 1
    ipus: tuple[int, int] | None = None
    strategy: str = "default"
    mode: str = "Default"
    period: int = 1
    switches: frozenset[str] = frozenset()
    optimiser: str = "sgd"
    loader: str = "tensors"
    drop_last: bool = True
    workers: int = 0
    action: str = "nothing"
    seed: int = 0

    def has(self, switch: str) -> bool:
        """Whether a switch is on."""
        return switch in self.switches

    def __str__(self) -> str:
        given = ((name, value) for name, value in vars(self).items() if value != vars(Case()).get(name))
        shown = ((name, sorted(value) if isinstance(value, frozenset) else value) for name, value in given)
        return ", ".join(f"{name}={value!r}" for name, value in shown) or "all defaults"


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda tensor: tensor,
    "strided": lambda tensor: torch.stack((tensor, tensor), -1)[..., 0],
    "requires grad": lambda t: t.requires_grad_() if t.is_floating_point() or t.is_complex() else t,
    "expanded": lambda tensor: tensor[:1].expand(tensor.shape) if len(tensor) else tensor,
}

Optimiser = Callable[[Any], torch.optim.Optimizer]

# Some gradients are rounding noise (a bias before a norm). A large eps keeps Adam from making it anything else.
_EPS = 1e-2

# Ours, and plain PyTorch's with the same arithmetic (None: there is none, so nothing to compare weights with).
OPTIMISERS: dict[str, tuple[Optimiser, Optimiser | None]] = {
    "sgd": (lambda p: poptorch.optim.SGD(p, lr=0.05), lambda p: torch.optim.SGD(p, lr=0.05)),
    "momentum": (
        lambda p: poptorch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    ),
    "adamw": (
        lambda p: poptorch.optim.AdamW(p, lr=0.01, eps=_EPS),
        lambda p: torch.optim.AdamW(p, lr=0.01, eps=_EPS),
    ),
    "torch sgd": (lambda p: torch.optim.SGD(p, lr=0.05), lambda p: torch.optim.SGD(p, lr=0.05)),
    "torch adam": (
        lambda p: torch.optim.Adam(p, lr=0.01, eps=_EPS),
        lambda p: torch.optim.Adam(p, lr=0.01, eps=_EPS),
    ),
    "loss scaling": (
        lambda p: poptorch.optim.SGD(p, lr=0.05, loss_scaling=8.0),
        lambda p: torch.optim.SGD(p, lr=0.05),
    ),
    "lamb": (lambda p: poptorch.optim.LAMB(p, lr=0.01), None),
    "rmsprop": (lambda p: poptorch.optim.RMSprop(p, lr=0.01), None),
}

STRATEGIES: dict[str, Callable[[], Any]] = {
    "sharded": lambda: poptorch.ShardedExecution(),
    "pipelined": lambda: poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement),
    "serial phases": lambda: poptorch.SerialPhasedExecution("front", "back"),
    "parallel phases": lambda: poptorch.ParallelPhasedExecution("front", "back"),
    "stages": lambda: poptorch.PipelinedExecution("front", "back"),
    "incomplete stages": lambda: poptorch.PipelinedExecution("front"),
}


def _off_chip(options: poptorch.Options, category: str) -> None:
    location = poptorch.TensorLocationSettings().useOnChipStorage(False).minElementsForOffChip(0)
    getattr(options.TensorLocations, f"set{category}Location")(location)


def _sharded_optimiser(options: poptorch.Options) -> None:
    location = poptorch.TensorLocationSettings().useReplicatedTensorSharding()
    options.TensorLocations.setOptimizerLocation(location.minElementsForReplicatedTensorSharding(2))


SWITCHES: dict[str, Callable[[poptorch.Options], Any]] = {
    "auto round": lambda o: o.autoRoundNumIPUs(True),
    "keep buffers apart": lambda o: o.broadcastBuffers(False),
    "sum": lambda o: o.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum),
    "running mean": lambda o: o.Training.setMeanAccumulationAndReplicationReductionStrategy(
        poptorch.MeanReductionStrategy.Running
    ),
    "stochastic rounding": lambda o: o.Precision.enableStochasticRounding(True),
    "half partials": lambda o: o.Precision.setPartialsType(torch.half),
    "floating point exceptions": lambda o: o.Precision.enableFloatingPointExceptions(True),
    "synthetic data": lambda o: o.enableSyntheticData(True),
    "random seed": lambda o: o.randomSeed(7),
    "offload optimiser": lambda o: _off_chip(o, "Optimizer"),
    "offload weights": lambda o: _off_chip(o, "Weight"),
    "offload activations": lambda o: _off_chip(o, "Activation"),
    "offload accumulators": lambda o: _off_chip(o, "Accumulator"),
    "shard optimiser": _sharded_optimiser,
    "io tiles": lambda o: o.TensorLocations.numIOTiles(64),
    "recomputation": lambda o: o._Popart.set("autoRecomputation", 3),
    "automatic loss scaling": lambda o: o.Training.setAutomaticLossScaling(True),
    "cycle count": lambda o: o.logCycleCount(True),
    "offline": lambda o: o.useOfflineIpuTarget(),
    "prefetch": lambda o: o._Popart.set("enablePrefetchDatastreams", False),
    "stable norm": lambda o: o.enableStableNorm(True),
    "orthogonal groups": lambda o: o,
}


def network_of(case: Case) -> Network:
    """Return the case's network with its own random weights."""
    network = Network(case.network)
    network.with_loss, network.ipus = case.training, case.ipus
    return network.half() if case.half else network


def inputs_of(case: Case, rows: int) -> Any:
    """Return inputs of `rows` rows; a half network gets half inputs where it would get float ones."""
    name = "float16" if case.half and case.dtype == "float32" else case.dtype
    made = KINDS[case.network].inputs(rows, DTYPES[name])
    return tree_map_only(Tensor, LAYOUTS[case.layout], made)


def options_of(case: Case) -> poptorch.Options:
    """Return the case's options; raises what PopTorch raises for those that contradict one another."""
    options = poptorch.Options().showCompilationProgressBar(False)
    options.deviceIterations(case.iterations).replicationFactor(case.replicas)
    options.Training.gradientAccumulation(case.accumulation)
    if case.group > 1:
        kind = (
            poptorch.CommGroupType.Orthogonal if case.has("orthogonal groups") else poptorch.CommGroupType.Consecutive
        )
        options.inputReplicaGrouping(case.group, kind)
    mode = poptorch.OutputMode[case.mode]
    options.outputMode(mode, case.period if mode is poptorch.OutputMode.EveryN else None)
    if case.strategy != "default":
        options.setExecutionStrategy(STRATEGIES[case.strategy]())
    for switch in sorted(case.switches):
        SWITCHES[switch](options)
    return options
