"""The fullest tile over one training step: the floor that is always live, and the hill on top of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor, nn

from ipu_course import engine, show
from ipu_course.figures.looks import ACTIVATIONS, CODE, OPTIMISER_STATE, TEMPORARY, WEIGHTS, Look
from ipu_course.figures.style import INK, in_style, new_figure, only_grid
from ipu_course.lessons.where_memory_goes.by_hand import TILES, counted_by, kept_for_backward

if TYPE_CHECKING:
    from ipu_course.engine import Profile

KIB = 1024
LEAST_PHASE = 0.05  # of all steps, for its name to have room
PHASES = {"forward": "forward", "recompute": "again", "backward": "backward", "update": "update"}


@dataclass(frozen=True)
class Hill:
    """The fullest tile of one IPU over a training step, in KiB.

    ``live`` are the results and gradients in memory at each step, ``temporary`` what the running op needs besides,
    ``phases`` and ``names`` what runs. What is always live are ``weights``, ``state`` (of the optimiser, and
    accumulators) and ``code`` with all that is no tensor; ``limit`` is the tile's memory.
    """

    weights: float
    state: float
    code: float
    live: Sequence[float]
    temporary: Sequence[float]
    phases: Sequence[str]
    names: Sequence[str]
    limit: float

    @property
    def floor(self) -> float:
        """The KiB that are always live."""
        return self.weights + self.state + self.code

    @property
    def peak(self) -> int:
        """The step at which the tile is fullest."""
        return max(range(len(self.live)), key=lambda step: self.live[step] + self.temporary[step])

    @property
    def height(self) -> float:
        """The not-always-live KiB at the peak."""
        return self.live[self.peak] + self.temporary[self.peak]

    @property
    def after_forward(self) -> float:
        """The KiB of results that are live at the end of the forward pass."""
        last = max(step for step, phase in enumerate(self.phases) if phase == "forward")
        return self.live[last]


@engine.needs_the_model
def hill_of(profile: Profile, ipu: int = 0) -> Hill:
    """Return the hill of the fullest tile of one IPU; without an IPU Model that is ``NOT_MODELLED``."""
    memory = profile.memory[ipu]
    sizes = memory.bytes_by_category
    weights = (sizes.get("variables", 0.0) + sizes.get("constants", 0.0)) / KIB
    state = (sizes.get("optimiser state", 0.0) + sizes.get("gradient accumulators", 0.0)) / KIB
    return Hill(
        weights=weights,
        state=state,
        code=memory.always_live_bytes / KIB - weights - state,
        live=[(step.bytes_on_tile - step.temporary_bytes) / KIB for step in memory.liveness],
        temporary=[step.temporary_bytes / KIB for step in memory.liveness],
        phases=[step.phase for step in memory.liveness],
        names=[step.name for step in memory.liveness],
        limit=profile.memory.tile_bytes / KIB,
    )


def kept_on_each_tile(count: Callable[[nn.Module, Tensor], float], network: nn.Module, images: Tensor) -> float:
    """Print and return the KiB of kept activations on each tile, spread evenly.

    ``count`` is the learner's function; as long as it is open, the course's counts.
    """
    counted = counted_by(count, kept_for_backward)
    kib = float(counted.function(network, images)) / TILES / KIB
    print(f"kept activations, counted by {counted.by} and spread evenly: {kib:.1f} KiB on each tile")
    return kib


def show_hill(hill: Hill, by_hand_kib: float) -> None:
    """Show the fullest tile over a training step; ``by_hand_kib`` are the kept activations counted by hand."""
    if hill is engine.NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    peak = hill.peak
    show.figure(
        hill_figure(hill, by_hand_kib),
        "The floor decides how much room there is, and one spike on the hill decides whether it fits.",
        f"KiB of the fullest tile over {len(hill.live)} steps, modelled. Always live: {hill.floor:.0f}, of them "
        f"{hill.weights:.0f} weights, {hill.state:.0f} state and accumulators, {hill.code:.0f} code. Results rise "
        f"to {hill.after_forward:.1f} at the end of the forward pass, where {by_hand_kib:.1f} were counted by hand, "
        f"and fall in the backward pass. The peak is {hill.floor + hill.height:.0f} of {hill.limit:.0f} KiB, during "
        f"{hill.names[peak]} ({hill.phases[peak]}), with {hill.temporary[peak]:.0f} KiB of temporary data.",
    )


def hill_figure(hill: Hill, by_hand_kib: float) -> Figure:
    """Return the chart of floor, hill and spikes, with the count by hand at the end of the forward pass."""
    count = len(hill.live)
    edges = list(range(count + 1))
    live = [hill.floor + each for each in (*hill.live, hill.live[-1])]
    top = [below + each for below, each in zip(live, (*hill.temporary, hill.temporary[-1]))]
    with in_style():
        figure, axes = new_figure(3.7)
        low = 0.0
        for part, look in ((hill.weights, WEIGHTS), (hill.state, OPTIMISER_STATE), (hill.code, CODE)):
            _fill(axes, edges, [low] * (count + 1), [low + part] * (count + 1), look)
            low += part
        _fill(axes, edges, [hill.floor] * (count + 1), live, ACTIVATIONS)
        _fill(axes, edges, live, top, TEMPORARY)
        axes.axhline(hill.limit, color=INK, linestyle="--", linewidth=1.4)
        axes.text(0, hill.limit + 5, f"a tile: {hill.limit:.0f} KiB", fontsize=9, va="bottom")
        _name_phases(axes, hill)
        end = sum(phase == "forward" for phase in hill.phases)
        axes.plot(end, hill.floor + by_hand_kib, "D", color="white", markeredgecolor=INK, markersize=7, zorder=5)
        axes.set(xlim=(0, count), ylim=(0, 1.18 * max(hill.limit, max(top))), ylabel="KiB of the fullest tile")
        axes.set_xlabel("what runs, in the order in which it runs")
        axes.set_title("The fullest tile over one micro-batch and the weight update (modelled)")
        looks = {"weights": WEIGHTS, "optimiser state, accumulators": OPTIMISER_STATE, "code": CODE,
                 "live results, gradients": ACTIVATIONS, "temporary data": TEMPORARY}  # fmt: skip
        keys: list[object] = [Patch(label=name, **look.area()) for name, look in looks.items()]
        keys.append(axes.plot([], [], "D", color="white", markeredgecolor=INK, label="counted by hand")[0])
        figure.legend(handles=keys, loc="outside lower center", ncols=6, frameon=False, fontsize=8.5)
        only_grid(axes)
    return figure


def _fill(axes: Axes, edges: Sequence[int], low: Sequence[float], high: Sequence[float], look: Look) -> None:
    axes.fill_between(edges, low, high, step="post", **look.area(0.0))


def _name_phases(axes: Axes, hill: Hill) -> None:
    """Write the name of each phase over its steps, and a line where it begins."""
    start = 0
    for step, phase in enumerate(hill.phases):
        if step + 1 < len(hill.phases) and hill.phases[step + 1] == phase:
            continue
        if step + 1 - start >= LEAST_PHASE * len(hill.phases):
            axes.text((start + step + 1) / 2, 1.1 * hill.limit, PHASES[phase], ha="center", fontsize=9)
            axes.axvline(step + 1, color=INK, linestyle=":", linewidth=0.8)
        start = step + 1
