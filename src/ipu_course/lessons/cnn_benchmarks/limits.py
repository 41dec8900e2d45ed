"""What limits a benchmark that is sent its images: the host link or the IPUs, as a roofline and as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Mapping

from ipu_course import engine, figures, show
from ipu_course.lessons.cnn_benchmarks.batches import peak_flops

if TYPE_CHECKING:
    from ipu_course.programs.bench import Result

__all__ = ["Limits", "limits_of", "show_limits"]


@dataclass(frozen=True)
class Limits:
    """A benchmark's rate with images sent, and its two bounds, all in images per second."""

    sent: Result
    alone: Result

    @property
    def flops_per_byte(self) -> float:
        """Operations for each byte that is sent."""
        return self.sent.profile.flops_per_call / self.sent.profile.samples_per_call / self.sent.settings.image_bytes

    @property
    def link_bytes_per_second(self) -> float:
        """Bytes per second over the host link while it sends (modelled)."""
        bytes_per_second = self.sent.images_per_second * self.sent.settings.image_bytes
        return bytes_per_second / self.sent.profile.shares["stream"]

    @property
    def link_rate(self) -> float:
        """Images per second that the link sends if it never stops."""
        return self.link_bytes_per_second / self.sent.settings.image_bytes

    @property
    def bottleneck(self) -> str:
        """What would limit the throughput if sending and computing overlapped."""
        return "host link" if self.link_rate < self.alone.images_per_second else "IPUs"


def limits_of(sent: Mapping[str, Result], alone: Mapping[str, Result]) -> dict[str, Limits]:
    """Pair benchmarks that send images with the same ones on synthetic data; none where they are not modelled."""
    return {name: Limits(sent[name], alone[name]) for name in sent if sent[name] is not engine.NOT_MODELLED}


def show_limits(sent: Mapping[str, Result], alone: Mapping[str, Result]) -> None:
    """Show what the host link allows each benchmark, what the IPUs allow it, and what it reaches."""
    found = limits_of(sent, alone)
    if not found:
        print(engine.NOT_HERE)
        return
    first = next(iter(found.values()))
    ipus = first.sent.settings.ipus
    points = [
        figures.RooflinePoint(
            name,
            each.flops_per_byte,
            each.sent.teraflops_per_ipu * ipus * 1e12,
            alone_per_second=each.alone.teraflops_per_ipu * ipus * 1e12,
        )
        for name, each in found.items()
    ]
    roof = figures.Roof("host link while it sends (modelled)", first.link_bytes_per_second)
    show.drawing(
        figures.roofline(points, peak=ipus * peak_flops(first.sent), roofs=[roof], peak_name=f"{ipus} IPUs"),
        "The fewer operations an image needs, the sooner the host link becomes the bottleneck.",
    )
    show.table([_row(name, each) for name, each in found.items()], index="4 IPUs, batch 16 on each (modelled)")


def _row(name: str, each: Limits) -> dict[str, object]:
    rates = {
        "link alone": each.link_rate,
        "IPUs alone": each.alone.images_per_second,
        "one after the other": each.sent.images_per_second,
    }
    return {
        "4 IPUs, batch 16 on each (modelled)": name,
        **{f"images/s, {what}": f"{rate:,.0f}" for what, rate in rates.items()},
        "lower of the first two": each.bottleneck,
    }
