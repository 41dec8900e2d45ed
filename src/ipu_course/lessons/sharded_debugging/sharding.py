"""What sharded execution costs: the modelled time of a weight update, pipelined and one IPU at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Sequence

from ipu_course import engine, show
from ipu_course.figures.curves import curves_figure

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule, Profile
    from ipu_course.published import PublishedFigure

KIB = 1024


@dataclass(frozen=True)
class UpdateTimes:
    """One weight update of ``accumulation`` micro-batches; ``pipelined`` is ``None`` where PopTorch refuses it.

    ``sharded`` keeps its activations, ``recomputing`` is sharded, too, and computes them again as the pipeline does.
    """

    accumulation: int
    pipelined: Profile | None
    sharded: Profile
    recomputing: Profile

    @property
    def ratio(self) -> float | None:
        """The sharded update's time as a multiple of the pipelined one's."""
        return self._ratio(self.sharded)

    @property
    def recomputing_ratio(self) -> float | None:
        """The same if sharded execution computes its activations again."""
        return self._ratio(self.recomputing)

    def _ratio(self, profile: Profile) -> float | None:
        if self.pipelined is None:
            return None
        return profile.device_seconds_per_call / self.pipelined.device_seconds_per_call


@engine.needs_the_model
def update_times(modelled: ModelledModule, accumulations: Sequence[int]) -> tuple[UpdateTimes, ...]:
    """Return the modelled weight update at each accumulation.

    PopTorch's pipeline computes activations again. That a sharded program keeps them is an assumption: PopTorch sets a
    kind of recomputation that belongs to pipelines, and nobody has published a sharded time.
    """
    pipelined = modelled.sweep("gradient_accumulation", accumulations, execution="pipelined")
    sharded, recomputing = (
        modelled.sweep("gradient_accumulation", accumulations, execution="sharded", recomputation=kind)
        for kind in ("none", "pipeline")
    )
    return tuple(
        UpdateTimes(count, one.profile, keeping.profile, again.profile)
        for count, one, keeping, again in zip(accumulations, pipelined, sharded, recomputing)
        if keeping.profile and again.profile
    )


def further_micro_batch(times: Sequence[UpdateTimes]) -> tuple[float, float]:
    """Return the seconds that one more micro-batch takes, (pipelined, sharded), from the two longest updates.

    Raises ``ValueError`` when fewer than two of them run as a pipeline.
    """
    running = [(each.pipelined, each.sharded, each.accumulation) for each in times if each.pipelined is not None]
    if len(running) < 2:
        raise ValueError("two updates have to run as a pipeline to show what one more micro-batch takes")
    (short_pipelined, short_sharded, few), (long_pipelined, long_sharded, many) = running[-2:]
    pipelined = long_pipelined.device_seconds_per_call - short_pipelined.device_seconds_per_call
    sharded = long_sharded.device_seconds_per_call - short_sharded.device_seconds_per_call
    return pipelined / (many - few), sharded / (many - few)


def show_sharding(times: Sequence[UpdateTimes], published: PublishedFigure) -> None:
    """Show the time of a weight update against accumulation, pipelined and sharded, and the fullest tile of both.

    ``published`` is the published time of one more micro-batch in the pipeline.
    """
    if times is engine.NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    names: dict[str, list[Profile | None]] = {
        "sharded": [each.sharded for each in times],
        "pipelined": [each.pipelined for each in times],
    }
    curves = {
        name: [None if not profile else 1e3 * profile.device_seconds_per_call for profile in profiles]
        for name, profiles in names.items()
    }
    words = "; ".join(
        f"accumulation {each.accumulation}: sharded {_milliseconds(each.sharded)}, pipelined "
        f"{_milliseconds(each.pipelined)}"
        for each in times
    )
    show.figure(
        curves_figure(
            [each.accumulation for each in times],
            curves,
            "micro-batches in a weight update (gradient accumulation)",
            "ms on the IPUs",
            "A weight update, one IPU at a time and pipelined (modelled)",
            from_zero=True,
        ),
        _takeaway(times),
        f"Time of a weight update on the IPUs, modelled. {words}.",
    )
    show.table([_row(each) for each in times], index="accumulation")
    pipelined, sharded = further_micro_batch(times)
    print(f"modelled: {1e3 * pipelined:.2f} ms for one more micro-batch, pipelined; {1e3 * sharded:.2f} ms sharded")
    print(f"{published.kind}: {published.text} {published.source}")
    longest = times[-1]
    print(
        f"modelled: with {longest.accumulation} micro-batches, sharded execution takes {longest.ratio:.2f} times as "
        f"long if it keeps its activations, and {longest.recomputing_ratio:.2f} times if it recomputes them"
    )


def _takeaway(times: Sequence[UpdateTimes]) -> str:
    refused = [each.accumulation for each in times if each.pipelined is None]
    longest = times[-1]
    begin = f"Sharded execution also runs {refused[0]} micro-batch, which the pipeline refuses. " if refused else ""
    return f"{begin}With {longest.accumulation}, an update takes {longest.ratio:.2f} times as long as pipelined."


def _row(each: UpdateTimes) -> dict[str, object]:
    return {
        "accumulation": each.accumulation,
        "pipelined": _milliseconds(each.pipelined),
        "sharded": _milliseconds(each.sharded),
        "sharded takes": "" if each.ratio is None else f"{each.ratio:.2f} times as long",
        "fullest tile: pipelined": _fullest(each.pipelined),
        "fullest tile: sharded": _fullest(each.sharded),
    }


def _milliseconds(profile: Profile | None) -> str:
    return "refused" if not profile else f"{1e3 * profile.device_seconds_per_call:.1f} ms"


def _fullest(profile: Profile | None) -> str:
    return "" if not profile else f"{profile.memory.max_tile_bytes / KIB:.0f} KiB"
