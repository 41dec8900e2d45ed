"""A network's stages on the device beside plain PyTorch: from which stage on do they differ?

Tables and descriptions give differences in bands, because a trained network does not compute the same to the last
digit on every machine.
"""

from __future__ import annotations

import math
from typing import Mapping

import torch
from torch import Tensor, nn

from ipu_course import show
from ipu_course.figures.bars import bars_figure

Outputs = Mapping[str, Tensor]

BANDS = ((0.01, "below 1 %"), (0.1, "1 to 10 %"), (0.5, "10 to 50 %"), (math.inf, "above 50 %"))
NOT_FINITE = "inf or NaN"


def plain_outputs(network: nn.Module, modules: Mapping[str, str], images: Tensor) -> dict[str, Tensor]:
    """Return the outputs of the modules of ``network`` for ``images`` in plain PyTorch, in the order of ``modules``.

    ``modules`` maps each name to the path of a module. Raises ``AttributeError`` for a path that is not there.
    """
    seen: dict[str, Tensor] = {}

    def noting(name: str) -> object:
        def note(module: nn.Module, inputs: object, output: Tensor) -> None:
            seen[name] = output

        return network.get_submodule(modules[name]).register_forward_hook(note)

    handles = [noting(name) for name in modules]
    try:
        with torch.no_grad():
            network(images)
    finally:
        for handle in handles:
            handle.remove()  # type: ignore[attr-defined]  # PyTorch does not export the handle's type everywhere
    return {name: seen[name] for name in modules if name in seen}


def relative_difference(reference: Tensor, found: Tensor) -> float:
    """Return the largest difference of two tensors as a share of the reference's largest value; NaN where one is."""
    reference, found = reference.detach().float(), found.detach().float()
    return float((found - reference).abs().max() / reference.abs().max())


def band(difference: float) -> str:
    """Return how large a relative difference is, in words that hold on every machine."""
    if not math.isfinite(difference):
        return NOT_FINITE
    return next(words for limit, words in BANDS if difference < limit)


def differing_stage(reference: Outputs, found: Outputs, tolerance: float = 0.02) -> str | None:
    """Return the name of the first stage further than ``tolerance`` from its reference, or ``None``."""
    for name, wanted in reference.items():
        if not relative_difference(wanted, found[name]) <= tolerance:  # no comparison with a NaN is ever true
            return name
    return None


def show_differences(compared: Mapping[str, tuple[Outputs, Outputs]], takeaway: str) -> None:
    """Show how far each stage is from its reference; ``compared`` maps a case to (reference, found).

    All cases have the same stages. ``takeaway`` is the figure's caption.
    """
    shares = {
        case: {name: relative_difference(reference[name], found[name]) for name in reference}
        for case, (reference, found) in compared.items()
    }
    stages = list(next(iter(shares.values())))
    words = "; ".join(
        f"{case}: {', '.join(f'{name} {band(share)}' for name, share in each.items())}"
        for case, each in shares.items()
    )  # fmt: skip
    heights = {
        case: [share if math.isfinite(share) else None for share in each.values()] for case, each in shares.items()
    }
    show.figure(
        bars_figure(
            stages, heights, "largest difference, of the reference's largest value",
            "Each stage beside plain PyTorch in fp32", percent=True, missing=NOT_FINITE, log=True,
        ),
        takeaway,
        f"How far each stage is from plain PyTorch. {words}.",
    )  # fmt: skip
    show.table([{"stage": name, **{case: band(shares[case][name]) for case in shares}} for name in stages], "stage")
