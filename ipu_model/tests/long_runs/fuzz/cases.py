"""A random program as data, so that it can be printed and run again, and how to draw one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st

import poptorch
from fuzz.networks import KINDS

DTYPES = {
    "float32": torch.float32, "float16": torch.float16, "float64": torch.float64, "bfloat16": torch.bfloat16,
    "int64": torch.int64, "int32": torch.int32, "int8": torch.int8, "uint8": torch.uint8, "bool": torch.bool,
    "complex64": torch.complex64,
}  # fmt: skip
_REAL = ("float32", "float16", "float64", "bfloat16")
STRATEGIES = ("default", "sharded", "pipelined", "serial phases", "parallel phases", "stages", "incomplete stages")
LOADERS = ("tensors", "Sync", "Async", "AsyncRebatched")
SWITCHES = (
    "auto round", "keep buffers apart", "sum", "running mean", "stochastic rounding", "half partials",
    "floating point exceptions", "synthetic data", "random seed", "offload optimiser", "offload weights",
    "offload activations", "offload accumulators", "shard optimiser", "io tiles", "recomputation",
    "automatic loss scaling", "cycle count", "offline", "prefetch", "stable norm", "orthogonal groups",
)  # fmt: skip
ACTIONS = (
    "nothing", "other rows", "other type", "detach and attach", "copy weights", "state dict", "profile", "latency",
    "evaluate beside", "collect", "missing argument", "new optimiser", "compile again", "interrupt", "copy",
)  # fmt: skip
LAYOUTS = ("contiguous", "strided", "requires grad", "expanded")


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
        strategy=st.sampled_from(["default"] * 3 + list(STRATEGIES)),
        mode=st.sampled_from([mode.name for mode in poptorch.OutputMode]),
        period=few,
        switches=st.frozensets(st.sampled_from(SWITCHES), max_size=4),
        optimiser=st.sampled_from(["sgd", "momentum", "adamw", "torch sgd", "loss scaling", "lamb", "rmsprop"]),
        loader=st.sampled_from(["tensors"] * 6 + list(loaders)),
        drop_last=st.booleans(),
        workers=st.sampled_from([0, 0, 0, 1]),
        action=st.sampled_from(ACTIONS),
        seed=st.integers(0, 2**16),
    )
    return st.tuples(drawn, st.integers(1, 10)).map(lambda pair: pair[0] if pair[1] == 10 else _mended(pair[0]))


def _mended(case: Case) -> Case:
    """Repair the commonest contradictions of a case: most programs are meant to run."""
    accumulation = case.accumulation if case.training else 1
    if case.training and case.ipus in ((0, 1), (1, 0), (0, 2)) and case.strategy in ("default", "pipelined", "stages"):
        accumulation = max(accumulation, 4)
    period = case.period if case.iterations % case.period == 0 else 1
    group = case.group if case.replicas % case.group == 0 else 1
    rows, iterations = max(1, case.rows), max(1, case.iterations)
    if not case.training and case.ipus not in (None, (0, 0)):
        iterations = max(iterations, 3)
    strategy = "default" if case.ipus is None else case.strategy
    dtype = case.dtype if case.network in ("integers", "masks") or case.dtype in _REAL else "float32"
    surplus = case.surplus if case.loader != "tensors" else 0
    return replace(
        case, surplus=surplus, accumulation=accumulation, period=period, group=group, rows=rows, iterations=iterations,
        strategy=strategy, dtype=dtype,
    )  # fmt: skip
