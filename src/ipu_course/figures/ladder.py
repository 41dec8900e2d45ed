"""The ladder of the hands-on: seconds an epoch, step by step, modelled beside published."""

from __future__ import annotations

from typing import Sequence

from matplotlib.figure import Figure

from ipu_course.figures.bars import bars_figure


def ladder_figure(steps: Sequence[str], modelled: Sequence[float | None], published: Sequence[float | None]) -> Figure:
    """Seconds an epoch of each step, modelled and published; ``None`` stands for a step that does not fit."""
    return bars_figure(
        steps,
        {"modelled": modelled, "published": published},
        "seconds an epoch",
        "ResNet-101 on CIFAR-10 over two IPUs: one change at a time",
        form="{:.1f}",
        missing="does not fit into memory",
    )
