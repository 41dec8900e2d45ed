"""Which layers of a training stand still, and how large their updates are beside half an ulp."""

from __future__ import annotations

from typing import Mapping, Sequence

from ipu_course import show
from ipu_course.figures.bars import bars_figure
from ipu_course.figures.curves import curves_figure
from ipu_course.lessons.numerics_layer_by_layer.layer_values import (
    ACTIVATION_GRADIENTS,
    UPDATED,
    WEIGHT_GRADIENTS,
    WEIGHTS,
    LayerValues,
    half_ulp,
    range_shares,
)
from ipu_course.lessons.numerics_layer_by_layer.two_sensors import EPOCHS, LAYERS, SensorTraining

STILL, FREE = 0.05, 0.6  # shares of the way that a layer goes in float32


def show_movement(trainings: Mapping[str, SensorTraining], takeaway: str) -> None:
    """Show how far the weights of each layer have moved, beside the first training, which is the reference."""
    reference = next(iter(trainings.values())).moved
    others = list(trainings.items())[1:]
    ways = {name: [training.moved[layer] / reference[layer] for layer in LAYERS] for name, training in others}
    drawn = bars_figure(
        LAYERS, ways, "distance from the first weights, relative to that in 32.32",
        "How far the weights of each layer have moved", percent=True,
    )  # fmt: skip
    told = "; ".join(
        f"{name}: {', '.join(f'{layer} {_way(share)}' for layer, share in zip(LAYERS, shares))}"
        for name, shares in ways.items()
    )
    show.figure(drawn, takeaway, f"How far the weights of each layer have moved, beside training in float32. {told}.")


def show_losses(trainings: Mapping[str, SensorTraining], takeaway: str) -> None:
    """Show the mean loss of each epoch of every training."""
    curves = {name: _epochs(training.losses) for name, training in trainings.items()}
    title = "The loss of training, epoch by epoch"
    drawn = curves_figure(range(1, EPOCHS + 1), curves, "epoch", "mean cross-entropy", title, from_zero=True)
    first = next(iter(curves.values()))[-1]
    told = ", ".join(f"{name} {losses[-1] / first:.0f}" for name, losses in curves.items())
    falls = all(losses[-1] < losses[0] for losses in curves.values())
    show.figure(
        drawn, takeaway,
        f"The loss of {'every' if falls else 'not every'} training falls over the epochs. The losses of the last "
        f"epoch, as multiples of that of {next(iter(curves))} and rounded: {told}.",
    )  # fmt: skip


def _epochs(losses: Sequence[float]) -> list[float]:
    calls = len(losses) // EPOCHS
    return [sum(losses[first : first + calls]) / calls for first in range(0, len(losses), calls)]


def _way(share: float) -> str:
    return "stands still" if share < STILL else "moves a part of the way" if share < FREE else "moves as far"


def movement_rows(values: LayerValues) -> list[dict[str, object]]:
    """Return a row for each layer: sizes of what an update needs, as medians, in float32 and without loss scaling."""
    return [_row(values, layer) for layer in LAYERS]


def _row(values: LayerValues, layer: str) -> dict[str, object]:
    weights = values[layer, WEIGHTS]
    updates = (values[layer, UPDATED] - weights).abs()
    half = half_ulp(weights)
    return {
        "layer": layer,
        "activation gradients that become zero": _about_share(range_shares(values[layer, ACTIVATION_GRADIENTS]).zero),
        "weight gradients that become zero": _about_share(range_shares(values[layer, WEIGHT_GRADIENTS]).zero),
        "median weight": f"{float(f'{float(weights.abs().median()):.1g}'):g}",
        "median update": f"{float(updates.median()):.1g}",
        "half an ulp there": f"{float(half.median()):.1g}",
    }


def _about_share(share: float) -> str:
    return f"about {about(100 * share)} %"


def lost_updates(values: LayerValues, layer: str) -> float:
    """Return the share, 0 to 1, of a layer's updates that are smaller than half an ulp of their weight."""
    weights = values[layer, WEIGHTS]
    return float(((values[layer, UPDATED] - weights).abs() < half_ulp(weights)).float().mean())


def outcome_rows(trainings: Mapping[str, SensorTraining]) -> list[dict[str, object]]:
    """Return a row for each training: what it looks like from outside."""
    return [
        {
            "training": name,
            "right answers": _right(training.accuracy),
            "all losses are numbers": "yes" if training.finite else "no",
            "bytes of weights": f"{training.weight_bytes:,}",
        }
        for name, training in trainings.items()
    ]


def _right(accuracy: float) -> str:
    """Return an accuracy in words: a training that fails ends at another one on every kind of processor."""
    if accuracy < 60:
        return "less than 60 %"
    tens = 10 * int(accuracy // 10)
    return f"{tens} to {tens + 10} %" if accuracy < 80 else f"about {about(accuracy)} %"


def about(accuracy: float) -> int:
    """Return an accuracy in per cent, to the nearest five: the last digits depend on the processor."""
    return 5 * round(accuracy / 5)
