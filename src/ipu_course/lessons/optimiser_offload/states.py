"""How much state an optimiser keeps, counted from its own state_dict()."""

from __future__ import annotations

from typing import Mapping

from torch import Tensor

from ipu_course import show
from ipu_course.models import SmallNetwork


def show_states(states: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Show what each optimiser keeps for the small network; ``states`` are "ipu_state" of a state_dict() by name."""
    parameters = sum(weight.numel() for weight in SmallNetwork().parameters())
    counted = {name: state_bytes(each, parameters) for name, each in states.items()}
    show.table(
        [
            {"optimiser": name, "tensors for each weight": tensors, "bytes of state for each parameter": f"{size:g}"}
            for name, (tensors, size) in counted.items()
        ],
        index="optimiser",
    )


def state_bytes(states: Mapping[str, Tensor], parameters: int) -> tuple[int, float]:
    """Return how many tensors of state a weight has, and their bytes for each of so many ``parameters``.

    ``states`` maps names such as "Accl1___weight" to tensors. The count of steps, a single number, is left out.
    """
    found = {name: tensor for name, tensor in states.items() if name.startswith("Accl")}
    kinds = {name.partition("___")[0] for name in found}
    return len(kinds), sum(tensor.numel() * tensor.element_size() for tensor in found.values()) / parameters
