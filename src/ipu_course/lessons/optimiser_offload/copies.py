"""What the copies of state between the chip and streaming memory take of a weight update."""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

from ipu_course import engine, show
from ipu_course.figures.curves import curves_figure

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule, Profile


def copies_share(profile: Profile) -> float:
    """Return the percentage of the device time in which tensors move to or from streaming memory."""
    return 100 * profile.shares["offload"]


def copy_milliseconds(profile: Profile) -> float:
    """Return the milliseconds of one call in which tensors move to or from streaming memory."""
    return 1e3 * profile.device_seconds_per_call * profile.shares["offload"]


def show_update(profile: Profile) -> None:
    """Show one weight update over time, with the state off the chip, and the model's band of error.

    The engine's own words for a timeline count copies as work, so the description here says what the tiles do.
    """
    if profile is engine.NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    drawn, _ = engine.figure("timeline", profile)
    whole = 1e3 * profile.device_seconds_per_call
    copies = [copying_milliseconds(profile, ipu) for ipu in range(len(profile.cycles))]
    each = ", ".join(f"IPU {ipu} copies for {time:.1f} ms" for ipu, time in enumerate(copies))
    code = " and ".join(
        f"{cycles.on_tile_execute / cycles.total:.0%} on IPU {ipu}" for ipu, cycles in enumerate(profile.cycles)
    )
    show.figure(
        drawn,
        "The copies (offload) come at the end, in the update, and no tile computes while its own state moves.",
        f"One weight update of {whole:.1f} ms over time, modelled. Forward and backward passes of all micro-batches "
        f"come first. Then the state moves: {each}. The tiles run code in {code} of the cycles.",
    )
    low, high = profile.error_band
    print(f"On hardware, the update may take {low:.2f} to {high:.2f} times as long as modelled.")


def copying_milliseconds(profile: Profile, ipu: int) -> float:
    """Return for how long one IPU's tensors move to or from streaming memory in a call."""
    return 1e3 * sum(span.seconds for span in profile.timeline if span.ipu == ipu and span.kind == "offload")


def show_price(program: ModelledModule) -> None:
    """Show the parts of an update with the state off the chip: what grows with the accumulation, and what does not."""
    if program is engine.NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    time = program.update_time(optimiser_off_chip=True)
    copies = copy_milliseconds(program.profile(optimiser_off_chip=True))
    show.table(
        [
            {"part of an update (modelled)": "each micro-batch", "time": f"{1e3 * time.per_micro_batch:.2f} ms"},
            {"part of an update (modelled)": "once per update", "time": f"{1e3 * time.constant:.1f} ms"},
            {"part of an update (modelled)": "of which copies of state", "time": f"{copies:.1f} ms"},
        ],
        index="part of an update (modelled)",
    )


def show_accumulations(program: ModelledModule, accumulations: Sequence[int]) -> None:
    """Show the copies' share of the time, and how much longer an update takes than on the chip, by accumulation."""
    if program is engine.NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    on, off = (
        [program.profile(gradient_accumulation=count, optimiser_off_chip=off) for count in accumulations]
        for off in (False, True)
    )
    shares = [profile.shares["offload"] for profile in off]
    longer = [b.device_seconds_per_call / a.device_seconds_per_call - 1 for a, b in zip(on, off)]
    words = "; ".join(
        f"{count}: {share:.0%} and {more:.0%}" for count, share, more in zip(accumulations, shares, longer)
    )
    show.figure(
        curves_figure(
            accumulations,
            {"copies' share of the time": shares, "longer than on the chip": longer},
            "gradient accumulation (micro-batches per weight update)",
            "percentage",
            "What does it cost to keep AdamW's state off the chip? (modelled)",
            log_x=True,
            percent=True,
            from_zero=True,
        ),
        "Doubling the accumulation roughly halves the percentage by which an update takes longer.",
        "Two falling lines: the copies' share of the time, and how much longer an update takes than with the state on "
        f"the chip. Modelled, by accumulation: {words}.",
    )
