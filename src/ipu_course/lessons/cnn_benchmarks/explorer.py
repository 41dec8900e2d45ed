"""Lesson 09's explorer: one inference benchmark, the latency of one batch in parts, its throughput and memory."""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple

from ipu_course import engine
from ipu_course.errors import CourseError
from ipu_course.explorers import Choice, Explorer, Slider, View
from ipu_course.figures import looks
from ipu_course.lessons.cnn_benchmarks.benchmark_figure import latency_figure
from ipu_course.programs.bench import changed, configuration, modelled_result

if TYPE_CHECKING:
    from ipu_course.programs.bench import Result

BUDGET_MS = 2.0
BATCHES = (1, 2, 4, 5, 6, 7, 8, 10, 12, 16, 32, 64, 90)
IPUS = (1, 4, 16)
IPUS_OF_AN_M2000 = 4
NOTHING: Mapping[str, Any] = MappingProxyType({})

RESNET50 = "ResNet-50"
SYNTHETIC, EIGHT_BITS, SIXTEEN_BITS = "synthetic: nothing is sent", "generated, 8 bits", "generated, 16 bits"


class Network(NamedTuple):
    """A configuration of the page, and what is changed in it."""

    configuration: str
    changes: Mapping[str, Any] = NOTHING


NETWORKS = {
    RESNET50: Network("resnet50-infer-generated"),
    "ResNeXt-101": Network("resnext101-infer-generated"),
    "EfficientNet-B0": Network("efficientnet-b0-infer-generated"),
    "EfficientNet-B0, group dim 16": Network("efficientnet-b0-infer-generated", {"group_dim": 16, "expand_ratio": 4}),
}
DATA: dict[str, dict[str, Any]] = {
    SYNTHETIC: {"data": "synthetic", "eight_bit_io": False},
    EIGHT_BITS: {"data": "generated", "eight_bit_io": True},
    SIXTEEN_BITS: {"data": "generated", "eight_bit_io": False},
}


class Parts(NamedTuple):
    """The latency of one batch in ms: the cost of the call on the host, sending in a long loop, and computing."""

    call: float
    sending: float
    computing: float


def benchmark_view(network: str, batch: int, data: str, ipus: int) -> View:
    """Show one benchmark: the parts of one batch's latency, and the row of a table."""
    try:
        result = benchmark_result(network, batch, data, ipus)
    except CourseError as problem:
        return View(text=f"There is no result for this setting: {problem}")
    if result is engine.NOT_MODELLED:
        return View(text=engine.NOT_HERE)
    parts, latency = latency_parts(result), 1e3 * (result.latency_seconds or 0.0)
    slow = result.profile.error_band.high * latency
    drawn = latency_figure(
        {
            "the call": (parts.call, looks.CALL),
            "images are sent": (parts.sending, looks.LINK),
            "the IPU computes": (parts.computing, looks.COMPUTE),
        },
        BUDGET_MS,
        slow,
        f"{network}, batch {batch} on each of {ipus} IPU{'s' * (ipus > 1)}, {data} (modelled)",
    )
    keeps = "stays within" if latency <= BUDGET_MS else "misses"
    return View(
        drawn,
        takeaway=f"One batch takes {latency:.2f} ms (modelled), which {keeps} {BUDGET_MS:g} ms.",
        description=f"The latency of one batch in parts: {parts.call:.2f} ms for the call, {parts.sending:.2f} ms for "
        f"sending, {parts.computing:.2f} ms for computing. The error band ends at {slow:.2f} ms. Modelled.",
        rows=[_row(result, latency, slow)],
        text=" ".join(result.profile.notes),
    )


@lru_cache(maxsize=512)
def benchmark_result(network: str, batch: int, data: str, ipus: int) -> Result:
    """Return the modelled result, or ``engine.NOT_MODELLED``; a new network or batch takes about a second.

    Raises ``CourseError`` for what the model refuses.
    """
    of = NETWORKS[network]
    machine = "M2000" if ipus <= IPUS_OF_AN_M2000 else "POD16"
    settings = changed(
        configuration(of.configuration).settings,
        batch_size=batch, replicas=ipus, instances=ipus, machine=machine, **of.changes,
    )  # fmt: skip
    result: Any = modelled_result(changed(settings, **DATA[data]), network)
    return engine.NOT_MODELLED if result is None else result  # type: ignore[no-any-return]


def latency_parts(result: Result) -> Parts:
    """Return the parts of one batch's latency; what a long loop does not pay is the call's."""
    steady = 1e3 * result.settings.images_per_batch / result.images_per_second
    sending = steady * result.profile.shares["stream"]
    latency = 1e3 * (result.latency_seconds or 0.0)
    return Parts(call=max(0.0, latency - steady), sending=sending, computing=steady - sending)


def _row(result: Result, latency_ms: float, slow_ms: float) -> dict[str, object]:
    return {
        "images/s, long loop": f"{result.images_per_second:,.0f}",
        "images/s, single calls": f"{1e3 * result.settings.images_per_batch / latency_ms:,.0f}",
        "latency": f"{latency_ms:.2f} ms",
        f"latency x {result.profile.error_band.high:g} (error band)": f"{slow_ms:.2f} ms",
        "memory": result.verdict,
    }


BENCHMARK = Explorer(
    controls={
        "network": Choice("network", {name: name for name in NETWORKS}, RESNET50),
        "batch": Slider("batch size", BATCHES, 16),
        "data": Choice("data", {name: name for name in DATA}, EIGHT_BITS),
        "ipus": Slider("IPUs", IPUS, 4),
    },
    view=benchmark_view,
)
