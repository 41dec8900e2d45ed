"""The training graph of a network: each layer's forward, backward and update steps, and what waits in between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from ipu_course import show
from ipu_course.figures.looks import BACKWARD, FORWARD, MEMORY, UPDATE, Look
from ipu_course.figures.style import INK, in_style, new_figure
from ipu_course.lessons.where_memory_goes.by_hand import bytes_of

MIB = 1024 * 1024
FORWARD_ROW, KEPT_ROW, BACKWARD_ROW, UPDATE_ROW = 3.0, 2.0, 1.0, 0.0
MOST_LAYERS = 24
WIDTH, HEIGHT = 0.78, 0.56


@dataclass
class LayerStep:
    """One layer of a network: its kind, its trained parameters, and the bytes that are kept for its backward step.

    A tensor that several layers need is counted at the first that keeps it.
    """

    kind: str
    parameters: int
    kept_bytes: int = 0


def layer_steps(network: nn.Module, images: Tensor) -> list[LayerStep]:
    """Return the layers without children in the order in which they run on ``images``.

    Layers that only give a tensor another shape are left out.
    """
    own = {each.data_ptr() for each in (*network.parameters(), *network.buffers())}
    found: list[LayerStep] = []
    kept: dict[int, Tensor] = {}  # the tensors themselves, so that no address is used twice

    def begin(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if not isinstance(layer, (nn.Flatten, nn.Unflatten, nn.Identity)):
            found.append(
                LayerStep(type(layer).__name__, sum(each.numel() for each in layer.parameters() if each.requires_grad))
            )

    def keep(tensor: Tensor) -> Tensor:
        address = tensor.data_ptr()
        if found and tensor.is_floating_point() and address not in own and address not in kept:
            kept[address] = tensor
            found[-1].kept_bytes += bytes_of(tensor)
        return tensor

    hooks = [each.register_forward_pre_hook(begin) for each in network.modules() if not list(each.children())]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network(images)
    for hook in hooks:
        hook.remove()
    return found


def show_training_graph(network: nn.Module, images: Tensor) -> None:
    """Show the training graph of a network for a micro-batch of ``images``; of a deep one the first layers."""
    every = layer_steps(network, images)
    steps = every[:MOST_LAYERS]
    largest = max(steps, key=lambda step: step.kept_bytes)
    updated = sum(step.parameters > 0 for step in steps)
    left_out = f" {len(every) - len(steps)} more layers follow." if len(every) > len(steps) else ""
    show.figure(
        training_graph_figure(steps),
        "What the first layers keep waits longest for its backward step.",
        f"Training graph of {len(steps)} layers in three rows. Every layer has a forward and a backward step, and "
        f"{updated} with weights have an update. Between forward and backward waits what a gradient needs, each tensor "
        f"at the first layer that keeps it; the largest is {largest.kept_bytes / MIB:.1f} MiB, at {largest.kind}."
        f"{left_out}",
    )


def training_graph_figure(steps: Sequence[LayerStep]) -> Figure:
    """Return the three rows of the training graph, with the MiB that wait between the first two."""
    with in_style():
        figure, axes = new_figure(3.5)
        for place, step in enumerate(steps):
            _box(axes, place, FORWARD_ROW, step.kind, FORWARD)
            _box(axes, place, BACKWARD_ROW, "", BACKWARD)
            if step.kept_bytes:
                _arrow(axes, (place, FORWARD_ROW - HEIGHT / 2), (place, KEPT_ROW + 0.2))
                _arrow(axes, (place, KEPT_ROW - 0.2), (place, BACKWARD_ROW + HEIGHT / 2))
                _box(axes, place, KEPT_ROW, f"{step.kept_bytes / MIB:.1f}", MEMORY, height=0.4)
            if place:
                _arrow(axes, (place - 1 + WIDTH / 2, FORWARD_ROW), (place - WIDTH / 2, FORWARD_ROW))
                _arrow(axes, (place - WIDTH / 2, BACKWARD_ROW), (place - 1 + WIDTH / 2, BACKWARD_ROW))
            if step.parameters:
                _arrow(axes, (place, BACKWARD_ROW - HEIGHT / 2), (place, UPDATE_ROW + HEIGHT / 2))
                _box(axes, place, UPDATE_ROW, "", UPDATE)
        rows = {FORWARD_ROW: "forward", KEPT_ROW: "kept (MiB)", BACKWARD_ROW: "backward", UPDATE_ROW: "update"}
        axes.set_yticks(list(rows), list(rows.values()))
        axes.set(xlim=(-0.6, len(steps) - 0.4), ylim=(-0.5, 3.75), xticks=[])
        axes.set_title("The training graph: what a gradient needs waits between forward and backward")
        axes.tick_params(length=0)
        for side in ("left", "bottom"):
            axes.spines[side].set_visible(False)
    return figure


def _box(axes: Axes, place: float, row: float, text: str, look: Look, height: float = HEIGHT) -> None:
    axes.bar(place, height, WIDTH, bottom=row - height / 2, **look.area())
    plate = {"facecolor": look.face, "edgecolor": "none", "pad": 0.6}
    words = text.replace("BatchNorm2d", "Norm").replace("Conv2d", "Conv").replace("MaxPool2d", "Pool")
    size = 7.5 if len(words) < 6 else 6.5 if len(words) == 6 else 6
    axes.text(place, row, words[:9], ha="center", va="center", fontsize=size, color=look.text, bbox=plate)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": INK, "linewidth": 0.8})
