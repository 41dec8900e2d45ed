"""How to draw a random program."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

import poptorch
from fuzz.actions import ACTIONS
from fuzz.cases import DTYPES, LAYOUTS, OPTIMISERS, STRATEGIES, SWITCHES, Case
from fuzz.networks import KINDS

_REAL = ("float32", "float16", "float64", "bfloat16")
LOADERS = ("tensors", "Sync", "Async", "AsyncRebatched")


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
        optimiser=st.sampled_from(list(OPTIMISERS)),
        loader=st.sampled_from(["tensors"] * 6 + list(loaders)),
        drop_last=st.booleans(),
        workers=st.sampled_from([0, 0, 0, 1]),
        action=st.sampled_from(list(ACTIONS)),
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
        case,
        surplus=surplus,
        accumulation=accumulation,
        period=period,
        group=group,
        rows=rows,
        iterations=iterations,
        strategy=strategy,
        dtype=dtype,
    )
