"""Distributions of values by layer and quantity, above the range of half precision."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from ipu_course.figures import Drawing
from ipu_course.figures.style import BLUE, GREY, INK, ORANGE, WIDTH_INCHES, in_style, only_grid
from ipu_course.lessons.numerics_layer_by_layer.layer_values import (
    QUANTITIES,
    LayerValues,
    RangeShares,
    is_scaled,
    range_shares,
)
from ipu_course.lessons.numerics_layer_by_layer.two_sensors import LAYERS

FIRST, LAST = -44, 24  # exponents of the axis
BANDS = (("becomes zero", FIRST, -25, "////"), ("loses digits", -25, -14, "...."), ("overflows", 16, LAST, "xxxx"))
WORTH_A_NOTE = 0.005
TALLEST = 0.5


def range_figure(values: LayerValues, exponent: int = 0) -> Drawing:
    """Draw every quantity of every layer; ``exponent`` is that of the loss scaling, which multiplies gradients."""
    with in_style():
        figure = Figure(figsize=(WIDTH_INCHES, 6.2), layout="constrained")
        panels = figure.subplots(len(LAYERS), len(QUANTITIES), sharex=True, sharey=True)
        told = []
        for row, layer in enumerate(LAYERS):
            for column, quantity in enumerate(QUANTITIES):
                axes = panels[row][column]
                power = exponent if is_scaled(quantity) else 0
                _bands(axes)
                _outline(axes, values[layer, quantity], power)
                _clipped(axes, values[layer, quantity], power)
                shares = range_shares(values[layer, quantity], power)
                _note(axes, shares)
                told.append(f"{layer}, {quantity}: {shares_in_words(shares)}")
                if row == 0:
                    axes.set_title(quantity, fontsize=10)
                if column == 0:
                    axes.set_ylabel(layer, fontweight="bold")
        patches = [Patch(facecolor=GREY, edgecolor="white", hatch=hatch, label=name) for name, _, _, hatch in BANDS]
        figure.legend(handles=patches, loc="outside lower center", ncol=len(patches), frameon=False)
        for axes in panels[-1]:
            axes.set_xlabel("absolute value")
        panels[0][0].set_ylim(0, TALLEST)
        figure.supylabel("share of non-zero values", fontsize=10)
        _finish(figure, panels[0][0])
    return Drawing(figure, f"Sizes of non-zero values against the range of float16. {'; '.join(told)}.")


def shares_in_words(shares: RangeShares) -> str:
    """Return the shares that are worth a note, in words that do not depend on the last value that is counted."""
    parts = {"become zero": shares.zero, "lose digits": shares.subnormal, "overflow": shares.overflow}
    found = [f"{_many(share)} {what}" for what, share in parts.items() if share >= WORTH_A_NOTE]
    return ", ".join(found) if found else "all are held"


def _many(share: float) -> str:
    return "all" if share > 0.99 else "nearly all" if share >= 0.9 else "most" if share >= 0.5 else "some"


def one_panel(values: Tensor, exponents: Mapping[str, int], title: str) -> Figure:
    """Draw one quantity of one layer, as it is and, where ``exponents`` has a second entry, scaled."""
    with in_style():
        figure = Figure(figsize=(WIDTH_INCHES, 3.2), layout="constrained")
        axes = figure.add_subplot()
        _bands(axes)
        for (name, power), (colour, dashes) in zip(exponents.items(), ((BLUE, "--"), (ORANGE, "-"))):
            _outline(axes, values, power, colour, dashes, name)
        for name, low, high, _ in BANDS:
            axes.text((low + high) / 2, 1.0, name, ha="center", va="bottom", fontsize=9, color=INK,
                      transform=axes.get_xaxis_transform())  # fmt: skip
        axes.set_title(title, pad=20)
        axes.set_ylabel("share of non-zero values")
        if len(exponents) > 1:
            figure.legend(loc="outside lower center", ncol=2, frameon=False)
        axes.set_xlabel("absolute value")
        _finish(figure, axes)
    return figure


def _bands(axes: Axes) -> None:
    for _, low, high, hatch in BANDS:
        axes.axvspan(low, high, facecolor=GREY, edgecolor="white", hatch=hatch, zorder=0)


def _outline(
    axes: Axes, values: Tensor, power: int, colour: str = BLUE, dashes: str = "-", name: str | None = None
) -> None:
    shares, edges = _histogram(values, power)
    axes.stairs(shares, edges, color=colour, linestyle=dashes, linewidth=1.6, label=name)


def _histogram(values: Tensor, power: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    sizes = values.detach().double().abs().flatten()
    exponents = np.log2(sizes[sizes > 0].numpy()) + power
    edges = np.arange(FIRST, LAST + 1)
    counts = np.histogram(np.clip(exponents, FIRST, LAST - 1e-9), bins=edges)[0]
    return counts / max(1, len(exponents)), edges


def _clipped(axes: Axes, values: Tensor, power: int) -> None:
    shares, edges = _histogram(values, power)
    top = int(shares.argmax())
    if shares[top] > TALLEST:  # the common axis cuts this bar off, so its height is written beside it
        axes.text(float(edges[top]) - 0.7, 0.88 * TALLEST, f"up to {shares[top]:.0%}", ha="right", va="top", fontsize=9,
                  color=INK, bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.0})  # fmt: skip


def _note(axes: Axes, shares: RangeShares) -> None:
    parts: Sequence[tuple[float, str]] = ((shares.zero, "zero"), (shares.subnormal, "lose digits"))
    lines = [f"{share:.0%} {what}" for share, what in parts if share >= WORTH_A_NOTE]
    if lines:
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.0}
        axes.text(0.98, 0.95, "\n".join(lines), ha="right", va="top", fontsize=9, color=INK, transform=axes.transAxes,
                  bbox=box)  # fmt: skip


def _finish(figure: Figure, axes: Axes) -> None:
    axes.set_xlim(FIRST, LAST)
    axes.set_xticks([-25, -14, 0, 16])
    axes.xaxis.set_major_formatter(lambda exponent, _: f"$2^{{{exponent:.0f}}}$")
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    for each in figure.axes:
        only_grid(each)
        each.tick_params(axis="x", labelsize=9)
