"""Profiles for the tests of reports: a two-stage pipeline in the size of ResNet-101, the smallest there is, and any."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser

from hypothesis import strategies as st

from ipu_model.explore.advise import Advice
from ipu_model.explore.fit_result import Candidate, Fit, FitResult
from ipu_model.explore.options import Change, Risk
from ipu_model.explore.search_points import Setting, Split
from ipu_model.predict.calibration import StreamConstants
from ipu_model.predict.hardware import system_named
from ipu_model.predict.host import HostWork, Loading
from ipu_model.predict.links import HostLink
from ipu_model.predict.order import rounds_of
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
    Verdict,
)
from ipu_model.predict.program import Recomputation
from ipu_model.predict.time import Call, Conditions, DeviceTime
from ipu_model.predict.work import StageWork, Workload

POD4 = Machine("POD4", "IPU-POD4", "GC200", ipus=4, tiles=1472, tile_bytes=638_976, clock_hz=1.33e9)
SPLIT = PhaseCycles(on_tile_execute=0.70, do_exchange=0.27, internal_sync=0.03)  # of the cycles of any work


# --- a pipeline


def pipeline_profile(
    *, accumulation: int = 8, updates: int = 1, overlaps: bool = False, loader: float = 0.0922, fits: bool = True
) -> Profile:
    """Return a network over two IPUs, of which the first recomputes: `overlaps` for a loader beside the device.

    Its inputs of 1.6 MB, at 5 GB/s and with 20 GB/s before and after, take 425,600 and twice 106,400 cycles.
    """
    stages = (
        StageWork(0, 0, SPLIT.times(1.3e6), SPLIT.times(1.3e6), SPLIT.times(3.2e6), inputs=1.6e6, on=2e6),
        StageWork(1, 1, SPLIT.times(1.2e6), backward=SPLIT.times(3.4e6), outputs=64.0, back=2e6),
    )
    work = Workload(stages, {0: SPLIT.times(480_000.0), 1: SPLIT.times(650_000.0)}, ipus=2)
    host_link = HostLink(system_named("POD4"), StreamConstants(5e9, 20e9, 20e9, 0.0))
    conditions = Conditions(host_link, copy_bytes_per_second=50e9, sync_cycles=0.0, clock_hz=POD4.clock_hz)
    schedule = DeviceTime(Call(work, rounds_of(2, accumulation, updates), conditions, training=True))
    device, host, start = POD4.seconds(schedule.device_cycles), 0.034, 0.0 if overlaps else loader
    on_host = (
        Span("loader", "load", 0.0, loader, "loading the next call" if overlaps else "loading"),
        Span("host", "call", start, host + device, "call"),
    )
    return Profile(
        name="resnet101",
        machine=POD4,
        training=True,
        samples_per_call=64 * accumulation * updates,
        device_seconds_per_call=device,
        call_seconds=max(loader, host + device) if overlaps else loader + host + device,
        host_seconds_per_call=loader + host,
        limited_by="host loader" if loader > host + device else "stage 0",
        error_band=ErrorBand(0.9, 1.1),
        cycles=schedule.cycles,
        memory=Memory(tuple(ipu_memory(ipu, 1.0 if fits else 1.3) for ipu in (0, 1)), POD4.tile_bytes),
        timeline=tuple(replace(span, start=span.start + start + host) for span in schedule.timeline) + on_host,
        ops=tuple(resnet_ops(accumulation)),
        compilation_seconds=487.3,
        shares=schedule.shares,
        options={"replicas": 1, "half partials": False, "inputs": "[64, 3, 64, 64] float16, [64] int32"},
        flops_per_call=3.2e12,
        host=HostWork(loader, workers=int(overlaps)),
        notes=("Costed without a formula of their own, as plain code that reads and writes: aten.topk.",),
    )


CATEGORIES = (  # name, bytes on the fullest tile of each IPU, always live
    ("weights", (14_700, 45_800), True),
    ("gradient accumulators", (14_700, 45_800), True),
    ("optimiser state", (44_000, 137_400), True),
    ("activations", (149_000, 73_000), False),
    ("stashes", (3_200, 1_100), False),
    ("temporaries", (112_000, 88_000), False),
    ("internal exchange code", (93_000, 92_900), True),
    ("control code", (16_400, 16_400), True),
    ("vertex state", (20_700, 20_800), True),
    ("vertex code", (12_000, 12_000), True),
    ("host exchange code", (11_700, 11_700), True),
    ("stack", (4_000, 4_000), True),
)


def ipu_memory(ipu: int, scale: float) -> IpuMemory:
    """Return the categories, tiles of eleven heights, and activations that pile up forward and go backward."""
    categories = tuple(
        MemoryCategory(name, on_tile[ipu] * scale, on_tile[ipu] * scale * POD4.tiles * 0.93, live)
        for name, on_tile, live in CATEGORIES
    )
    fullest = math.fsum(c.bytes_on_fullest_tile for c in categories)
    tiles = [fullest * (0.86 + 0.007 * (tile * (ipu + 3) % 11) - 0.1 * (tile > 1300)) for tile in range(POD4.tiles)]
    tiles[7 + 40 * ipu] = fullest
    liveness = tuple(
        LivenessStep(f"op_{ipu}_{n}", phase, 1000.0 * height + 9000.0 * (n % 7), 9000.0 * (n % 7))
        for phase, heights in (("forward", range(160)), ("backward", range(160, 0, -1)))
        for n, height in enumerate(heights)
    )
    return IpuMemory(ipu, categories, tuple(tiles), liveness)


def resnet_ops(accumulation: int) -> Iterator[OpProfile]:
    """Yield the convolutions and norms of ResNet-101's 33 blocks, the last 10 of which are on IPU 1."""
    blocks = [f"layer{layer}.{block}" for layer, count in enumerate((3, 4, 23, 3), 1) for block in range(count)]
    for index, scope in enumerate(f"model.{block}.conv{n}" for block in blocks for n in (1, 2, 3)):
        stage, cost = int(index >= 3 * 15), 12_000 + 700 * (index % 13)
        again = accumulation * (2 - stage)
        plan, node = f"AMP, batch {2 + index % 3} x field {4 + index % 5}", f"convolution_{index}"
        yield op(node, "aten.convolution", scope, "forward", stage, "contraction", cost, again, plan=plan)
        yield op(f"norm_{index}", "aten.native_batch_norm", scope, "forward", stage, "norm", cost * 0.25, again)
        back = f"{node}_back", "aten.convolution_backward", scope, "backward", stage, "contraction"
        for part, factor in (("data gradient", 1.0), ("weight gradient", 1.3)):
            yield op(*back, cost * factor, accumulation, part=part, plan=plan)
    yield op("topk", "aten.topk", "model", "forward", 1, "fallback", 9_000, accumulation, is_fallback=True)


def op(
    node: str, target: str, scope: str, phase: str, stage: int, family: str, cycles: float, executions: int,
    *, part: str = "", plan: str = "", is_fallback: bool = False,
) -> OpProfile:  # fmt: skip
    split = SPLIT.times(cycles)
    return OpProfile(
        node, target, part, scope, phase, stage, stage, family, split.on_tile_execute, split.do_exchange,
        split.internal_sync, 24_000.0, int(cycles * 40_000) if plan else 0, executions, plan, is_fallback,
        name=f"{scope}: {part or target.removeprefix('aten.')}", peak_flops_per_cycle=188_416.0 if plan else 0.0,
    )  # fmt: skip


# --- others


def inference_profile() -> Profile:
    """Return the smallest program there is: one IPU, one op, and a timeline of a single stretch."""
    cycles = PhaseCycles(on_tile_execute=600.0, do_exchange=300.0, internal_sync=100.0)
    seconds = POD4.seconds(cycles.total)
    tiles = (1000.0,) + (500.0,) * (POD4.tiles - 1)
    memory = IpuMemory(0, (MemoryCategory("weights", 1000.0, sum(tiles), True),), tiles, ())
    spans = (Span("IPU 0", "forward", 0.0, seconds, micro_batch=0, ipu=0), Span("host", "call", 0.0, seconds, "call"))
    return Profile(
        name="tiny", machine=POD4, training=False, samples_per_call=1, device_seconds_per_call=seconds,
        call_seconds=seconds, host_seconds_per_call=0.0, limited_by="stage 0", error_band=ErrorBand(0.75, 1.35),
        cycles=(cycles,), memory=Memory((memory,), POD4.tile_bytes), timeline=spans,
        ops=(op("mm", "aten.mm", "", "forward", 0, "contraction", 1000.0, 1),), compilation_seconds=12.0,
        shares={"main": 1.0}, options={},
    )  # fmt: skip


def wide_profile(ipus: int = 16) -> Profile:
    base = pipeline_profile()
    memory = tuple(replace(base.memory[ipu % 2], ipu=ipu) for ipu in range(ipus))
    timeline = tuple(
        replace(span, resource=f"IPU {2 * pair + span.ipu}", ipu=2 * pair + span.ipu)
        for pair in range(ipus // 2)
        for span in base.timeline
        if span.ipu is not None
    )
    cycles = base.cycles * (ipus // 2)
    return replace(base, cycles=cycles, memory=Memory(memory, POD4.tile_bytes), timeline=timeline)


def resized(profile: Profile, tile_bytes: float) -> Profile:
    return replace(profile, memory=replace(profile.memory, tile_bytes=int(tile_bytes)))


PROFILE_KINDS = {
    "pipeline": pipeline_profile,
    "collapsed": lambda: pipeline_profile(accumulation=24, overlaps=True),
    "too large": lambda: pipeline_profile(fits=False),
    "smallest": inference_profile,
    "sixteen IPUs": wide_profile,
}
ADVICE = (
    Advice("asynchronous data loading", "poptorch.DataLoader(..., mode=poptorch.DataLoaderMode.Async)", 1.71, 0.0,
           Verdict.FITS, "The host loads the next batch while the device works."),
    Advice("recomputation: pipeline -> none", 'opts._Popart.set("autoRecomputation", 0)', 1.22, 298_000.0,
           Verdict.DOES_NOT_FIT, "Activations are kept instead of being computed again, which is faster if they fit."),
    Advice("optimiser state: on chip -> off chip", "opts.TensorLocations.setOptimizerLocation(...)", 0.93, -137_400.0,
           Verdict.FITS, "Optimiser state in streaming memory frees space on the tiles."),
)  # fmt: skip


def search_result(*, fastest: bool = True) -> FitResult:
    """Return a search of three settings: as it is (twice a tile), one that fits, and one too close to call."""
    setting = Setting(micro_batch=4, split=Split(1), replicas=1, recomputation=Recomputation.NONE)
    start = Candidate(setting, Verdict.DOES_NOT_FIT, 2.0, 100.0)
    close = Candidate(replace(setting, split=Split(2)), Verdict.CLOSE, 1.0, 150.0)
    fits = Candidate(replace(setting, split=Split(4, ("layer",))), Verdict.FITS, 0.6, 180.0)
    change = Change("split over 4 IPUs", "poptorch.BeginBlock(model.layer, ipu_id=1)", Risk.SCHEDULE)
    found = Fit(fits if fastest else close, (change,), change.line, inference_profile(), is_confirmed=True)
    best = found if fastest else None
    return FitResult("net", start, best, best, None if fastest else found, (start, close, fits), binds="It is big.")


# --- any profile at all

WORDS = st.text(max_size=12)
AMOUNTS = st.floats(0.0, 1e12, allow_nan=False) | st.integers(0, 10**12)
POSITIVE = st.floats(1e-9, 1e9, allow_nan=False)
COUNTS, COUNT = st.integers(0, 10**6), st.integers(1, 10**6)
FACTORS = st.floats(0.1, 10.0, allow_nan=False)
VALUES = WORDS | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans()


def few(strategy, *, least=0, most=4):
    return st.lists(strategy, min_size=least, max_size=most).map(tuple)


MACHINES = st.builds(
    Machine, WORDS, WORDS, WORDS, ipus=COUNT, tiles=st.integers(1, 1472), tile_bytes=COUNT,
    clock_hz=st.floats(1e6, 1e10, allow_nan=False),
)  # fmt: skip
SPANS = st.builds(
    Span, st.sampled_from(["IPU 0", "IPU 1", "IPU 10", "host", "loader", "link"]) | WORDS,
    st.sampled_from(SPAN_KINDS) | WORDS, start=st.floats(0.0, 100.0), seconds=st.floats(0.0, 100.0), label=WORDS,
    stage=st.none() | COUNTS, micro_batch=st.none() | COUNTS, repeats=st.integers(1, 10**4), ipu=st.none() | COUNTS,
    recomputes=st.booleans(),
)  # fmt: skip
RUNS = st.builds(TileRun, st.integers(1, 1472), AMOUNTS)
LIVE = st.builds(LiveTensor, WORDS, WORDS, few(COUNTS), WORDS, AMOUNTS, AMOUNTS, st.booleans(), COUNTS, COUNTS, COUNTS)
MEMORY = st.builds(
    IpuMemory, COUNTS, few(st.builds(MemoryCategory, WORDS, AMOUNTS, AMOUNTS, st.booleans(), few(RUNS))), few(AMOUNTS),
    few(st.builds(LivenessStep, WORDS, WORDS, AMOUNTS, AMOUNTS, WORDS, WORDS, COUNTS)), few(LIVE), COUNTS,
)  # fmt: skip
OPS = st.builds(
    OpProfile, WORDS, WORDS, WORDS, few(WORDS).map(".".join), WORDS, COUNTS, COUNTS, WORDS, AMOUNTS, AMOUNTS, AMOUNTS,
    AMOUNTS, flops=COUNTS, executions=COUNTS, plan=WORDS, is_fallback=st.booleans(), name=WORDS, operands=few(WORDS),
    line=WORDS, accessed_bytes=AMOUNTS, peak_flops_per_cycle=AMOUNTS, recomputations=COUNTS,
)  # fmt: skip
HOSTS = st.builds(
    HostWork, POSITIVE, POSITIVE, st.sampled_from(Loading), workers=COUNTS, source=WORDS, hosts=COUNT,
    cores_per_host=COUNTS,
)  # fmt: skip
PROFILES = st.builds(
    Profile, name=WORDS, machine=MACHINES, training=st.booleans(), samples_per_call=st.integers(1, 10**9),
    device_seconds_per_call=POSITIVE, call_seconds=POSITIVE, host_seconds_per_call=st.just(0.0) | POSITIVE,
    limited_by=WORDS, error_band=st.builds(ErrorBand, FACTORS, FACTORS),
    cycles=few(st.builds(PhaseCycles, *[AMOUNTS] * 8), least=1, most=8),
    memory=st.builds(Memory, few(MEMORY, least=1, most=6), COUNT, AMOUNTS),
    timeline=few(SPANS, most=6), ops=few(OPS), compilation_seconds=AMOUNTS,
    shares=st.dictionaries(WORDS, st.floats(0.0, 1.0), max_size=6), options=st.dictionaries(WORDS, VALUES),
    flops_per_call=AMOUNTS, notes=few(st.text(max_size=300), most=6), updates=few(OPS),
    layers=st.dictionaries(WORDS, WORDS, max_size=3), host=HOSTS, replicas=COUNTS, device_iterations=COUNTS,
    io_tiles=COUNTS,
)  # fmt: skip


# --- pages


class Page(HTMLParser):
    """What a page consists of; `closed` tells that every element that was opened is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.closed = True
        self.feed(text)
        self.close()
        self.closed &= not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in ("meta", "br", "hr", "img", "link", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.closed &= bool(self.open) and self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def count(self, name: str) -> int:
        return sum(tag == name for tag, _ in self.elements)

    @property
    def words(self) -> str:
        return " ".join(self.texts)
