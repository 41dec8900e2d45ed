"""Profiles composed by hand for the tests of the reports: a ResNet-101-sized pipeline, and any odd profile.

`pipeline_profile` follows the grouped schedule of a two-stage pipeline step by step, with cycles in the size of
those published for ResNet-101 (published rows "day03-resnet101"), so that spans, cycles and shares agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser

from ipu_model.explore.advise import Advice
from ipu_model.explore.fit_result import Candidate, Fit, FitResult
from ipu_model.explore.options import Risk
from ipu_model.explore.settings import Change, Setting, Split
from ipu_model.explore.split import Balance
from ipu_model.predict.profile import (
    ErrorBand,
    IpuMemory,
    LivenessStep,
    Machine,
    Memory,
    MemoryCategory,
    OpProfile,
    PhaseCycles,
    Profile,
    Span,
    Verdict,
)
from ipu_model.predict.program import Recomputation

POD4 = Machine("POD4", "IPU-POD4", "GC200", ipus=4, tiles=1472, tile_bytes=638_976, clock_hz=1.33e9)
STAGES = 2
SAMPLES = 64
STREAM = PhaseCycles(stream_copy_begin=112_952, stream_copy_mid=427_941, stream_copy_end=88_781)
STREAM_OUT = PhaseCycles(stream_copy_begin=500_000, stream_copy_mid=12_000, stream_copy_end=80_000)
COPY = PhaseCycles(global_exchange=53_432)
UPDATE = (478_291.0, 655_000.0)
WORK = {  # cycles of one micro-batch on each stage
    "forward": (1_310_000.0, 1_180_000.0),
    "recompute": (1_310_000.0, 0.0),
    "backward": (3_150_000.0, 3_420_000.0),
}
SPLIT = PhaseCycles(on_tile_execute=0.70, do_exchange=0.27, internal_sync=0.03)  # of a pass's cycles


@dataclass
class Trace:
    """Spans and cycles of both IPUs while a call is laid out; `at` is where its next part starts, in cycles."""

    at: float = 0.0
    spans: list[Span] = field(default_factory=list)
    cycles: list[PhaseCycles] = field(default_factory=lambda: [PhaseCycles()] * STAGES)

    def add(self, ipu: int, kind: str, start: float, spent: PhaseCycles, repeats: int = 1, **about: int | str) -> float:
        """Add a stretch of `repeats` times `spent` cycles and return when it ends."""
        total = spent.times(repeats)
        if total.total:
            begin, length = POD4.seconds(start), POD4.seconds(total.total)
            self.spans.append(Span(f"IPU {ipu}", kind, begin, length, repeats=repeats, stage=ipu, ipu=ipu, **about))
            self.cycles[ipu] += total
        return start + total.total

    def step(self, work: list[list[tuple[str, int]]], streams: bool, repeats: int = 1) -> None:
        """Add one pipeline step: input, the passes of each stage, waiting for the slowest, copies between IPUs."""
        ends = []
        for ipu, passes in enumerate(work):
            waits = PhaseCycles(external_sync=STREAM.total)
            at = self.add(ipu, "stream in" if ipu == 0 else "wait", self.at, STREAM if ipu == 0 else waits, repeats) \
                if streams else self.at  # fmt: skip
            for kind, micro_batch in passes:
                about = {} if repeats > 1 else {"micro_batch": micro_batch}
                at = self.add(ipu, kind, at, SPLIT.times(WORK[kind][ipu]), repeats, **about)
            ends.append(at)
        for ipu, end in enumerate(ends):
            waited = PhaseCycles(external_sync=(max(ends) - end) / repeats)
            at = self.add(ipu, "wait", end, waited, repeats)
            at = self.add(ipu, "copy", max(ends), COPY, repeats, label="activations and gradients")
        self.at = at


def passes_of(stage: int, step: int, accumulation: int) -> list[tuple[str, int]]:
    """Return what a stage does in a step of the grouped schedule, as (kind, micro-batch)."""
    forward, backward = step - stage, step - (2 * (STAGES - 1) - stage)
    found = []
    if 0 <= forward < accumulation:
        found.append(("forward", forward))
    if 0 <= backward < accumulation:
        found += [("recompute", backward)] * (stage < STAGES - 1) + [("backward", backward)]
    return found


def laid_out(accumulation: int, collapsed: bool) -> Trace:
    """Lay out one call; `collapsed` shows the steps in which both stages are busy once, with repeats."""
    trace = Trace()
    step = 0
    while step < accumulation + 2 * (STAGES - 1):
        work = [passes_of(stage, step, accumulation) for stage in range(STAGES)]
        full = all(len(passes) == 3 - stage for stage, passes in enumerate(work))
        repeats = accumulation - 2 * (STAGES - 1) if full and collapsed else 1
        trace.step(work, streams=step < accumulation, repeats=repeats)
        step += repeats
    slowest = max(UPDATE)
    for ipu, cycles in enumerate(UPDATE):
        at = trace.add(ipu, "update", trace.at, SPLIT.times(cycles))
        trace.add(ipu, "wait", at, PhaseCycles(external_sync=slowest - cycles))
    trace.at += slowest
    for ipu in range(STAGES):
        last = ipu == STAGES - 1
        waits = PhaseCycles(external_sync=STREAM_OUT.total)
        trace.add(ipu, "stream out" if last else "wait", trace.at, STREAM_OUT if last else waits)
    return trace


def pipeline_profile(
    *, accumulation: int = 8, collapsed: bool = False, overlaps: bool = False, loader: float = 0.0922, fits: bool = True
) -> Profile:
    """Return ResNet-101 over two IPUs in half precision: `overlaps` for a loader beside the device."""
    trace = laid_out(accumulation, collapsed)
    device, host = max(span.end for span in trace.spans), 0.034
    spans = tuple(trace.spans)
    start = 0.0 if overlaps else loader
    shifted = tuple(replace(span, start=span.start + start + host) for span in spans)
    on_host = (
        Span("loader", "load", 0.0, loader, "loading the next call" if overlaps else "loading"),
        Span("host", "call", start, host + device, "call"),
    )
    call = max(loader, host + device) if overlaps else loader + host + device
    updating = POD4.seconds(max(UPDATE)) / device
    streaming = POD4.seconds(STREAM.total * accumulation + STREAM_OUT.total) / device
    filling = 2 * (STAGES - 1) / (accumulation + 2 * (STAGES - 1)) * (1 - updating - streaming)
    return Profile(
        name="resnet101",
        machine=POD4,
        training=True,
        samples_per_call=SAMPLES * accumulation,
        device_seconds_per_call=device,
        call_seconds=call,
        host_seconds_per_call=loader + host,
        limited_by="host loader" if loader > host + device else "stage 0",
        error_band=ErrorBand(0.9, 1.1),
        cycles=tuple(trace.cycles),
        memory=memory_of_both(1.0 if fits else 1.3),
        timeline=shifted + on_host,
        ops=tuple(resnet_ops(accumulation)),
        compilation_seconds=487.3,
        shares={"main": 1 - filling - updating - streaming, "fill and flush": filling, "update": updating,
                "stream": streaming},
        options={"micro-batch size": SAMPLES, "gradient accumulation": accumulation, "device iterations": 1,
                 "replicas": 1, "half partials": False, "recomputation": "pipeline",
                 "loader seconds per sample": 0.18e-3, "inputs": "[64, 3, 64, 64] float16, [64] int32"},
        flops_per_call=3.2e12,
        notes=("Costed without a formula of their own, as plain code that reads and writes: aten.topk.",),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------- memory

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


def memory_of_both(scale: float) -> Memory:
    """Return the memory of both IPUs, each category `scale` times as large as the feasible program's."""
    return Memory(tuple(ipu_memory(ipu, scale) for ipu in range(STAGES)), POD4.tile_bytes)


def ipu_memory(ipu: int, scale: float) -> IpuMemory:
    """Return one IPU: tiles in groups by how much they hold, the first as full as its categories add up to."""
    categories = tuple(
        MemoryCategory(name, on_tile[ipu] * scale, on_tile[ipu] * scale * POD4.tiles * 0.93, live)
        for name, on_tile, live in CATEGORIES
    )
    fullest = math.fsum(c.bytes_on_fullest_tile for c in categories)
    tiles = [fullest * (0.86 + 0.07 * (tile * (ipu + 3) % 11) / 10 - 0.1 * (tile > 1300)) for tile in range(POD4.tiles)]
    tiles[7 + 40 * ipu] = fullest
    steps = 160
    room = sum(c.bytes_on_fullest_tile for c in categories if not c.always_live)
    liveness = tuple(liveness_step(ipu, index, steps, room) for index in range(2 * steps))
    return IpuMemory(ipu, categories, tuple(tiles), liveness)


def liveness_step(ipu: int, index: int, steps: int, room: float) -> LivenessStep:
    """Return one of `2 * steps` steps: activations pile up on the way forward and go on the way back."""
    forward = index < steps
    reached = (index + 1) / steps if forward else (2 * steps - index) / steps
    temporary = room * (0.12 + 0.3 * (index % 3 == 0)) * (0.6 + 0.4 * (index % 7 == 0))
    live = room * 0.55 * reached
    phase = "forward" if forward else "backward"
    return LivenessStep(f"op_{ipu}_{index}", phase, live + temporary, temporary)


# ---------------------------------------------------------------------------------------------------- ops


def resnet_ops(accumulation: int) -> Iterator[OpProfile]:
    """Yield the ops of ResNet-101: convolutions, norms and non-linearities, forward and backward."""
    scopes = ["conv1"]
    for layer, blocks in enumerate((3, 4, 23, 3), 1):
        scopes += [f"layer{layer}.{block}.conv{n}" for block in range(blocks) for n in (1, 2, 3)]
    second = scopes.index("layer3.8.conv1")
    for index, scope in enumerate(scopes):
        stage = int(index >= second)
        yield from block_ops(f"model.{scope}", index, stage, accumulation)
    yield op("topk", "aten.topk", "model", "forward", 1, "fallback", 9_000, accumulation, is_fallback=True)
    yield op("addmm", "aten.addmm", "model.fc", "forward", 1, "contraction", 48_000, accumulation, plan="batch 8 x 16")


def block_ops(scope: str, index: int, stage: int, accumulation: int) -> Iterator[OpProfile]:
    """Yield a convolution with its norm and non-linearity, and their backward ops."""
    cost = 12_000 + 700 * (index % 13)
    again = accumulation * (2 - stage)  # the first stage computes its forward pass twice
    plan = f"AMP, batch {2 + index % 3} x field {4 + index % 5} x out {1 + index % 4}"
    convolution, norm = f"convolution_{index}", f"batch_norm_{index}"
    yield op(convolution, "aten.convolution", scope, "forward", stage, "contraction", cost, again, plan=plan)
    yield op(norm, "aten.native_batch_norm", scope, "forward", stage, "normalisation", cost * 0.25, again)
    yield op(f"relu_{index}", "aten.relu_", scope, "forward", stage, "elementwise", cost * 0.06, again)
    back = ("aten.convolution_backward", scope, "backward", stage, "contraction")
    for part, factor in (("data gradient", 1.0), ("weight gradient", 1.3)):
        yield op(f"{convolution}_back", *back, cost * factor, accumulation, part=part, plan=plan)
    yield op(f"{norm}_back", "aten.native_batch_norm_backward", scope, "backward", stage, "normalisation", cost * 0.4,
             accumulation)  # fmt: skip
    yield op(f"relu_{index}_back", "aten.threshold_backward", scope, "backward", stage, "elementwise", cost * 0.07,
             accumulation)  # fmt: skip


def op(
    node: str, target: str, scope: str, phase: str, stage: int, family: str, cycles: float, executions: int,
    *, part: str = "", plan: str = "", is_fallback: bool = False,
) -> OpProfile:  # fmt: skip
    """Return an op whose cycles are split as those of a whole pass."""
    split = SPLIT.times(cycles)
    return OpProfile(
        node, target, part, scope, phase, stage, stage, family, split.on_tile_execute, split.do_exchange,
        split.internal_sync, 24_000.0, int(cycles * 40_000) if plan else 0, executions, plan, is_fallback,
        name=f"{scope}: {part or target.removeprefix('aten.')}", peak_flops_per_cycle=188_416.0 if plan else 0.0,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------- others


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
    """Return a pipeline over many IPUs: more than any table or figure has room for."""
    base = pipeline_profile()
    cycles = tuple(base.cycles[ipu % 2] for ipu in range(ipus))
    memory = tuple(replace(base.memory[ipu % 2], ipu=ipu) for ipu in range(ipus))
    timeline = tuple(
        replace(span, resource=f"IPU {2 * pair + span.ipu}", ipu=2 * pair + span.ipu)
        for pair in range(ipus // 2)
        for span in base.timeline
        if span.ipu is not None
    )
    return replace(base, cycles=cycles, memory=Memory(memory, POD4.tile_bytes), timeline=timeline)


PROFILE_KINDS = {
    "pipeline": pipeline_profile,
    "collapsed": lambda: pipeline_profile(collapsed=True, overlaps=True),
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
    fits = Candidate(replace(setting, split=Split(4, Balance.TIME)), Verdict.FITS, 0.6, 180.0)
    change = Change("split", "split over 4 IPUs", "poptorch.BeginBlock(model.layer, ipu_id=1)", Risk.SCHEDULE)
    found = Fit(fits if fastest else close, (change,), change.line, inference_profile(), is_confirmed=True)
    best = found if fastest else None
    return FitResult("net", start, best, best, None if fastest else found, (start, close, fits), binds="It is big.")


# ------------------------------------------------------------------------------------------------- pages

VOID = {"meta", "br", "hr", "img", "link", "input"}


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
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
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
