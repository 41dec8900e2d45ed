"""Any profile at all, for properties that hold for all of them."""

from __future__ import annotations

from hypothesis import strategies as st

from ipu_model.predict.host import HostWork, Loading
from ipu_model.predict.profile import (
    SPAN_KINDS,
    ErrorBand,
    IpuMemory,
    LivenessStep,
    LiveTensor,
    Machine,
    Memory,
    MemoryCategory,
    OpProfile,
    PhaseCycles,
    Profile,
    Span,
    TileRun,
)

WORDS = st.text(max_size=12)
AMOUNTS = st.floats(0.0, 1e12, allow_nan=False) | st.integers(0, 10**12)
POSITIVE = st.floats(1e-9, 1e9, allow_nan=False)
COUNTS = st.integers(0, 10**6)
FACTORS = st.floats(0.1, 10.0, allow_nan=False)

MACHINES = st.builds(
    Machine, WORDS, WORDS, WORDS, ipus=st.integers(1, 256), tiles=st.integers(1, 1472),
    tile_bytes=st.integers(1, 10**6), clock_hz=st.floats(1e6, 1e10, allow_nan=False),
)  # fmt: skip
PHASES = st.builds(PhaseCycles, *[AMOUNTS] * 8)
RESOURCES = st.sampled_from(["IPU 0", "IPU 1", "IPU 10", "host", "loader", "link"]) | WORDS
SPANS = st.builds(
    Span, RESOURCES, st.sampled_from(SPAN_KINDS) | WORDS, start=st.floats(0.0, 100.0), seconds=st.floats(0.0, 100.0),
    label=WORDS, stage=st.none() | COUNTS, micro_batch=st.none() | COUNTS, repeats=st.integers(1, 10**4),
    ipu=st.none() | COUNTS, recomputes=st.booleans(),
)  # fmt: skip
RUNS = st.lists(st.builds(TileRun, st.integers(1, 1472), AMOUNTS), max_size=3).map(tuple)
CATEGORIES = st.builds(MemoryCategory, WORDS, AMOUNTS, AMOUNTS, st.booleans(), RUNS)
LIVENESS = st.builds(LivenessStep, WORDS, WORDS, AMOUNTS, AMOUNTS, WORDS, WORDS, COUNTS)
LIVE = st.builds(
    LiveTensor, WORDS, WORDS, st.lists(COUNTS, max_size=4).map(tuple), WORDS, AMOUNTS, AMOUNTS, st.booleans(), COUNTS,
    COUNTS, COUNTS,
)  # fmt: skip


def few(strategy, *, least=0, most=4):
    """Return tuples of a few."""
    return st.lists(strategy, min_size=least, max_size=most).map(tuple)


MEMORIES = st.builds(
    Memory,
    few(st.builds(IpuMemory, COUNTS, few(CATEGORIES), few(AMOUNTS), few(LIVENESS), few(LIVE), COUNTS), least=1, most=6),
    st.integers(1, 10**6),
    AMOUNTS,
)
OPS = st.builds(
    OpProfile, WORDS, WORDS, WORDS, st.lists(WORDS, max_size=3).map(".".join), WORDS, COUNTS, COUNTS, WORDS, AMOUNTS,
    AMOUNTS, AMOUNTS, AMOUNTS, flops=COUNTS, executions=COUNTS, plan=WORDS, is_fallback=st.booleans(),
    name=WORDS, operands=st.lists(WORDS, max_size=2).map(tuple), line=WORDS, accessed_bytes=AMOUNTS,
    peak_flops_per_cycle=AMOUNTS, recomputations=COUNTS,
)  # fmt: skip
OPTIONS = st.dictionaries(
    WORDS, WORDS | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans()
)
HOSTS = st.builds(
    HostWork, st.floats(0.0, 10.0), st.floats(0.0, 10.0), st.sampled_from(Loading), workers=COUNTS, source=WORDS,
    hosts=st.integers(1, 64), cores_per_host=COUNTS,
)  # fmt: skip
PROFILES = st.builds(
    Profile, name=WORDS, machine=MACHINES, training=st.booleans(),
    samples_per_call=st.integers(1, 10**9), device_seconds_per_call=POSITIVE, call_seconds=POSITIVE,
    host_seconds_per_call=st.floats(0.0, 1e9, allow_nan=False), limited_by=WORDS,
    error_band=st.builds(ErrorBand, FACTORS, FACTORS), cycles=few(PHASES, least=1, most=8), memory=MEMORIES,
    timeline=few(SPANS, most=6), ops=few(OPS), compilation_seconds=AMOUNTS,
    shares=st.dictionaries(WORDS, st.floats(0.0, 1.0), max_size=6), options=OPTIONS, flops_per_call=AMOUNTS,
    notes=few(st.text(max_size=300), most=6), updates=few(OPS), layers=st.dictionaries(WORDS, WORDS, max_size=3),
    host=HOSTS, replicas=COUNTS, device_iterations=COUNTS, io_tiles=COUNTS,
)  # fmt: skip
