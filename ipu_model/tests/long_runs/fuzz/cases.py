"""A random program as data, so that it can be printed and run again: what it asks of PopTorch, and how to draw one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._pytree import tree_map_only

import poptorch
from fuzz.networks import KINDS, Network

_NAMES = ["float32", "float16", "float64", "bfloat16", "int64", "int32", "int8", "uint8", "bool", "complex64"]
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _NAMES}
_REAL = ("float32", "float16", "float64", "bfloat16")
LOADERS = ("tensors", "Sync", "Async", "AsyncRebatched")
# What programs do between two calls: things that work, mistakes, and interrupts at any moment.
ACTIONS = (
    *("nothing", "other rows", "other type", "missing argument", "detach and attach", "copy weights", "state dict"),
    *("profile", "latency", "evaluate beside", "collect", "new optimiser", "compile again", "interrupt", "copy"),
)


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
        return switch in self.switches

    @property
    def slices(self) -> int:
        """Into how many equal parts the rows of a call are cut: D x A x R / G."""
        return self.iterations * self.accumulation * (self.replicas // self.group)

    def __str__(self) -> str:
        chosen = (f"{name}={value!r}" for name, value in vars(self).items() if value != getattr(Case(), name))
        return ", ".join(chosen) or "all defaults"


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda tensor: tensor,
    "strided": lambda tensor: torch.stack((tensor, tensor), -1)[..., 0],
    "requires grad": lambda t: t.requires_grad_() if t.is_floating_point() or t.is_complex() else t,
    "expanded": lambda tensor: tensor[:1].expand(tensor.shape) if len(tensor) else tensor,
}

# Some gradients are rounding noise (a bias before a norm). A large eps keeps Adam from making it anything else.
_ADAM = {"lr": 0.01, "eps": 1e-2}
# Ours, plain PyTorch's with the same arithmetic (None: there is none, so nothing to compare weights with), arguments.
_OPTIMISERS: dict[str, tuple[Any, Any, dict[str, float]]] = {
    "sgd": (poptorch.optim.SGD, torch.optim.SGD, {"lr": 0.05}),
    "momentum": (poptorch.optim.SGD, torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}),
    "adamw": (poptorch.optim.AdamW, torch.optim.AdamW, _ADAM),
    "torch sgd": (torch.optim.SGD, torch.optim.SGD, {"lr": 0.05}),
    "torch adam": (torch.optim.Adam, torch.optim.Adam, _ADAM),
    "loss scaling": (partial(poptorch.optim.SGD, loss_scaling=8.0), torch.optim.SGD, {"lr": 0.05}),
    "lamb": (poptorch.optim.LAMB, None, {"lr": 0.01}),
    "rmsprop": (poptorch.optim.RMSprop, None, {"lr": 0.01}),
}

STRATEGIES: dict[str, Callable[[], Any]] = {
    "sharded": lambda: poptorch.ShardedExecution(),
    "pipelined": lambda: poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement),
    "serial phases": lambda: poptorch.SerialPhasedExecution("front", "back"),
    "parallel phases": lambda: poptorch.ParallelPhasedExecution("front", "back"),
    "stages": lambda: poptorch.PipelinedExecution("front", "back"),
    "incomplete stages": lambda: poptorch.PipelinedExecution("front"),
}


_OFF_CHIP = poptorch.TensorLocationSettings().useOnChipStorage(False).minElementsForOffChip(0)
_SHARDED = poptorch.TensorLocationSettings().useReplicatedTensorSharding().minElementsForReplicatedTensorSharding(2)
_RUNNING = poptorch.MeanReductionStrategy.Running
SWITCHES: dict[str, Callable[[poptorch.Options], Any]] = {
    "auto round": lambda o: o.autoRoundNumIPUs(True),
    "keep buffers apart": lambda o: o.broadcastBuffers(False),
    "sum": lambda o: o.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum),
    "running mean": lambda o: o.Training.setMeanAccumulationAndReplicationReductionStrategy(_RUNNING),
    "stochastic rounding": lambda o: o.Precision.enableStochasticRounding(True),
    "half partials": lambda o: o.Precision.setPartialsType(torch.half),
    "floating point exceptions": lambda o: o.Precision.enableFloatingPointExceptions(True),
    "synthetic data": lambda o: o.enableSyntheticData(True),
    "random seed": lambda o: o.randomSeed(7),
    "offload optimiser": lambda o: o.TensorLocations.setOptimizerLocation(_OFF_CHIP),
    "offload weights": lambda o: o.TensorLocations.setWeightLocation(_OFF_CHIP),
    "offload activations": lambda o: o.TensorLocations.setActivationLocation(_OFF_CHIP),
    "offload accumulators": lambda o: o.TensorLocations.setAccumulatorLocation(_OFF_CHIP),
    "shard optimiser": lambda o: o.TensorLocations.setOptimizerLocation(_SHARDED),
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
        kinds = poptorch.CommGroupType
        kind = kinds.Orthogonal if case.has("orthogonal groups") else kinds.Consecutive
        options.inputReplicaGrouping(case.group, kind)
    options.outputMode(poptorch.OutputMode[case.mode], case.period if case.mode == "EveryN" else None)
    if case.strategy != "default":
        options.setExecutionStrategy(STRATEGIES[case.strategy]())
    for switch in sorted(case.switches):
        SWITCHES[switch](options)
    return options


def optimiser_of(case: Case, network: Network) -> torch.optim.Optimizer:
    ours, _, arguments = _OPTIMISERS[case.optimiser]
    return ours(network.parameters(), **arguments)  # type: ignore[no-any-return]


def plain_optimiser_of(case: Case, network: Network) -> torch.optim.Optimizer | None:
    """Return plain PyTorch's, or None where there is none."""
    _, plain, arguments = _OPTIMISERS[case.optimiser]
    return plain(network.parameters(), **arguments) if case.training and plain is not None else None


def cases(loaders: tuple[str, ...] = LOADERS) -> st.SearchStrategy[Case]:
    """Draw programs; most are valid, and simple values are the likely ones."""
    few = st.sampled_from([1, 1, 1, 2, 2, 3, 4])
    drawn = st.builds(
        Case,
        network=st.sampled_from(sorted(KINDS)),
        training=st.booleans(),
        half=st.sampled_from([False, False, True]),
        dtype=st.sampled_from(["float32"] * 8 + sorted(DTYPES)),
        rows=st.sampled_from([1, 2, 2, 3, 0]),
        surplus=st.sampled_from([0] * 8 + [1, 2]),
        layout=st.sampled_from(["contiguous"] * 4 + list(LAYOUTS)),
        iterations=st.sampled_from([1, 1, 2, 3, 4, 0]),
        accumulation=st.sampled_from([1, 1, 1, 2, 3, 4]),
        replicas=few,
        group=st.sampled_from([1, 1, 1, 2, 3]),
        ipus=st.sampled_from([None, (0, 0), (0, 1), (1, 0), (0, 2)]),
        strategy=st.sampled_from(["default"] * 4 + list(STRATEGIES)),
        mode=st.sampled_from([mode.name for mode in poptorch.OutputMode]),
        period=few,
        switches=st.frozensets(st.sampled_from(list(SWITCHES)), max_size=4),
        optimiser=st.sampled_from(list(_OPTIMISERS)),
        loader=st.sampled_from(["tensors"] * 6 + list(loaders)),
        drop_last=st.booleans(),
        workers=st.sampled_from([0, 0, 0, 1]),
        action=st.sampled_from(ACTIONS),
        seed=st.integers(0, 2**16),
    )
    return st.builds(lambda case, tenth: case if tenth == 10 else _mended(case), drawn, st.integers(1, 10))


def _mended(case: Case) -> Case:
    """Repair the commonest contradictions of a case: most programs are meant to run."""
    on_two = case.ipus not in (None, (0, 0))
    pipelined = on_two and case.strategy in ("default", "pipelined", "stages")
    accumulation = (max(case.accumulation, 4) if pipelined else case.accumulation) if case.training else 1
    return replace(
        case,
        rows=max(1, case.rows),
        iterations=max(3 if on_two and not case.training else 1, case.iterations),
        accumulation=accumulation,
        period=case.period if case.iterations % case.period == 0 else 1,
        group=case.group if case.replicas % case.group == 0 else 1,
        strategy="default" if case.ipus is None else case.strategy,
        dtype=case.dtype if case.network in ("integers", "masks") or case.dtype in _REAL else "float32",
        surplus=case.surplus if case.loader != "tensors" else 0,
    )
