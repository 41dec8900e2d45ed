"""Where each IPU's cycles go, by the phases of the execution trace."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ipu_model.profiling.data import Profile
from ipu_model.report.breakdown import phases
from ipu_model.report.figures.canvas import area, key, legend_below, new_figure, style, without_marks, words
from ipu_model.report.quantities import percent
from ipu_model.report.style import PHASE_LOOKS

_ROW_INCHES = 0.44
_LEAST_LABELLED = 0.055


def cycles_figure(profile: Profile) -> Figure:
    """Return the shares of the phases in the cycles of one call: a bar for each IPU."""
    with style():
        figure = new_figure(1.75 + _ROW_INCHES * len(profile.cycles))
        axes = figure.add_subplot()
        for ipu, cycles in enumerate(profile.cycles):
            left = 0.0
            for phase in phases(profile):
                share = phase.cycles[ipu] / cycles.total if cycles.total else 0.0
                look = PHASE_LOOKS[phase.name]
                axes.barh(ipu, share, 0.8, left=left, **area(look))
                if share >= _LEAST_LABELLED:
                    box = {"facecolor": look.face, "edgecolor": "none", "pad": 0.8} if look.hatch else None
                    axes.text(left + share / 2, ipu, percent(share), ha="center", va="center", fontsize=8.5,
                              color=look.text, bbox=box)  # fmt: skip
                left += share
        axes.set_yticks(range(len(profile.cycles)), [f"IPU {ipu}" for ipu in range(len(profile.cycles))])
        axes.set(xlim=(0, 1), ylim=(len(profile.cycles) - 0.5, -0.5))
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_xlabel("share of the cycles of one call")
        axes.set_title(f"{words(profile.name)}: what the IPUs spend their cycles on (modelled)")
        without_marks(axes, ("left",))
        used = [phase.name for phase in phases(profile) if any(phase.cycles)]
        legend_below(figure, [key(name, PHASE_LOOKS[name]) for name in used], columns=4)
    return figure
