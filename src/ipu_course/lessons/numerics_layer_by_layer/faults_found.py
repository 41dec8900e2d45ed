"""What a unit test finds with the usual inputs, and with inputs chosen for the layer."""

from __future__ import annotations

from ipu_course import show
from ipu_course.lessons.numerics_layer_by_layer.float64_check import reference_check
from ipu_course.lessons.numerics_layer_by_layer.planted_faults import TESTED, USUAL_INPUTS


def faults_found() -> int:
    """Return how many of the faulty layers fail the test with the usual inputs."""
    return sum(not reference_check(each.faulty(), USUAL_INPUTS, each.roundings) for each in TESTED)


def show_faults() -> None:
    """Show for each faulty layer whether the test finds its fault, with the usual and with chosen inputs."""
    rows = []
    for each in TESTED:
        usual, chosen = (
            "passes" if reference_check(each.faulty(), inputs, each.roundings) else "fails"
            for inputs in (USUAL_INPUTS, each.inputs)
        )
        rows.append(
            {
                "faulty layer": type(each.faulty()).__name__,
                "inputs from torch.randn": usual,
                "chosen inputs": chosen,
                "chosen": each.chosen,
                "its right twin": "passes" if reference_check(each.right(), each.inputs, each.roundings) else "fails",
            }
        )
    show.table(rows, index="faulty layer")
