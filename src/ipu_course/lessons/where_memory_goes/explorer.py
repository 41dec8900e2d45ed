"""Lesson 11's explorer: what fills the fullest tile, by micro-batch, optimiser and precision."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Callable

from matplotlib.figure import Figure

from ipu_course import engine
from ipu_course.explorers import Choice, Explorer, Slider, View
from ipu_course.figures.looks import ACTIVATIONS, CODE, OPTIMISER_STATE, TEMPORARY, WEIGHTS, Look
from ipu_course.figures.style import INK, in_style, new_figure

if TYPE_CHECKING:
    from ipu_course.engine import Profile

KIB = 1024
MICRO_BATCHES = (1, 2, 4, 8, 16, 24, 32, 36, 40, 48, 64)
OPTIMISERS = ("SGD", "SGD with momentum", "AdamW")
PARTS: tuple[tuple[str, Look, tuple[str, ...]], ...] = (
    ("weights", WEIGHTS, ("variables", "constants")),
    ("optimiser state, accumulators", OPTIMISER_STATE, ("optimiser state", "gradient accumulators")),
    ("code", CODE, ("control code", "vertex code", "vertex state", "internal exchange code", "host exchange code",
                    "global exchange code", "stacks, gaps and other")),
    ("activations, gradients, inputs", ACTIVATIONS, ("activations", "stashes", "gradients", "I/O buffers",
                                                     "I/O tile buffers")),
    ("temporary data", TEMPORARY, ("temporaries",)),
)  # fmt: skip


def memory_view(profiled: Callable[..., Profile], micro_batch: int, optimiser: str, half: bool) -> View:
    """Show the fullest tile of the learner's network; ``profiled`` returns its profile for a setting."""
    profile = _cached(profiled, micro_batch, optimiser, half)
    if profile is engine.NOT_MODELLED:
        return View(text=engine.NOT_HERE)
    memory = max(profile.memory, key=lambda each: each.max_tile_bytes)
    parts = {name: sum(memory.bytes_by_category.get(each, 0.0) for each in members) / KIB for name, _, members in PARTS}
    floor, limit = memory.always_live_bytes / KIB, profile.memory.tile_bytes / KIB
    full = memory.max_tile_bytes / KIB
    peak = memory.liveness[memory.peak]
    listed = ", ".join(f"{name} {kib:.0f}" for name, kib in parts.items())
    return View(
        _stack(parts, floor, limit),
        takeaway=f"The floor is {floor:.0f} KiB, and the hill adds {full - floor:.0f} (modelled).",
        description=f"KiB of the fullest tile at its peak, modelled: {listed}; {full:.0f} of {limit:.0f} together.",
        rows=[
            {
                "micro-batch": micro_batch,
                "always live (floor)": f"{floor:.1f} KiB",
                "not always live (hill)": f"{full - floor:.1f} KiB",
                "fullest tile": f"{full:.1f} KiB",
                "the model's verdict": engine.memory_verdict(profile),
                "peak during": f"{peak.name} ({peak.phase})",
            }
        ],
        text="Modelled.",
    )


@lru_cache(maxsize=256)
def _cached(profiled: Callable[..., Profile], micro_batch: int, optimiser: str, half: bool) -> Profile:
    return profiled(micro_batch=micro_batch, optimiser=optimiser, half=half)


def _stack(parts: dict[str, float], floor: float, limit: float) -> Figure:
    with in_style():
        figure, axes = new_figure(2.3)
        start = 0.0
        for name, look, _ in PARTS:
            axes.barh(0, parts[name], left=start, height=0.6, label=name, **look.area())
            start += parts[name]
        axes.axvline(limit, color=INK, linestyle="--", linewidth=1.4)
        axes.axvline(floor, color=INK, linewidth=1.4)
        axes.text(floor, 0.42, "floor ", ha="right", fontsize=9)
        axes.text(limit, 0.42, f"{limit:.0f} KiB ", ha="right", fontsize=9)
        axes.set(ylim=(-0.4, 0.65), xlim=(0, 1.06 * max(start, limit)), yticks=[], xlabel="KiB of the fullest tile")
        axes.set_title("What fills the fullest tile at its peak (modelled)")
        figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    return figure


MEMORY = Explorer(
    controls={
        "micro_batch": Slider("micro-batch", MICRO_BATCHES, 16),
        "optimiser": Choice("optimiser", {name: name for name in OPTIMISERS}, "AdamW"),
        "half": Choice("precision", {"float32": False, "float16": True}, False),
    },
    view=memory_view,
)
