"""The workshop's ResNet-101: its published execution trace beside the modelled one, phase by phase."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torchvision

import poptorch
from ipu_course import engine, ladder, show
from ipu_course.models import ClassifierWithLoss
from ipu_course.not_modelled import NOT_MODELLED
from ipu_course.published import published_figure

if TYPE_CHECKING:
    from ipu_course.engine import Profile

ACCUMULATION = 3
# What the model's constants were fitted on, by the engine's list of published rows.
FITTED = ("DoExchange", "GlobalExchange", "StreamCopyBegin", "StreamCopyMid", "StreamCopyEnd")
ARITHMETIC = ("OnTileExecute",)
MEANING = {
    "OnTileExecute": "tiles compute",
    "DoExchange": "tiles exchange data",
    "GlobalExchange": "copies between IPUs",
    "StreamCopyBegin": "waits until the host is ready",
    "StreamCopyMid": "transfers from and to the host, or streaming memory",
    "StreamCopyEnd": "waits for the end of a transfer",
    "InternalSync": "tiles of one IPU wait for each other",
    "ExternalSync": "waits for other IPUs",
}


@engine.needs_the_model
def workshop_profile() -> Profile:
    """Return the profile of the workshop's program in half precision with accumulation 3."""
    with torch.device("meta"):
        network: Any = torchvision.models.resnet101()
        network.layer3[8] = poptorch.BeginBlock(network.layer3[8], ipu_id=1)
        module = ClassifierWithLoss(network).half()
    options = poptorch.Options()
    options.Training.gradientAccumulation(ACCUMULATION)
    optimiser = poptorch.optim.AdamW(
        module.parameters(), lr=0.001, loss_scaling=1000, accum_type=torch.float16,
        first_order_momentum_accum_type=torch.float16, second_order_momentum_accum_type=torch.float32,
    )  # fmt: skip
    images, labels = (each.to("meta") for each in ladder.micro_batch(torch.half))
    return engine.profile_module(module, (images, labels), options, optimiser)


@engine.needs_the_model
def exchange_percentage(profile: Profile) -> float:
    """Return the percentage of IPU 0's cycles that are exchange between tiles."""
    cycles = engine.phases(profile)
    return 100 * cycles["DoExchange"][0] / sum(each[0] for each in cycles.values())


def show_phases(profile: Profile) -> None:
    """Show the cycles of IPU 0 by phase, modelled beside published."""
    if profile is NOT_MODELLED:
        print(engine.NOT_HERE)
        return
    show.table([_row(name, cycles[0]) for name, cycles in engine.phases(profile).items()], index="phase")


def _row(name: str, modelled: float) -> dict[str, object]:
    published = published_figure(Path(__file__).parent, name)
    kind = "fitted" if name in FITTED else "sum of fitted rows" if name in ARITHMETIC else "prediction"
    return {
        "phase": name,
        "what happens": MEANING[name],
        f"{published.kind} {published.source}": f"{published.value:,.0f}",
        "modelled": f"{modelled:,.0f}",
        "the model's row is a": kind,
    }
