"""The published configurations of BERT: as plans of the space, and the tasks that they were tuned for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping

from ipu_course.lessons.capstone.plans import Plan
from ipu_course.lessons.capstone.transformer import BASE, LARGE


@dataclass(frozen=True)
class PublishedTask:
    """What was published on four replicas: accumulation, proportions by IPU, and the sequences packed into a row."""

    accumulation: int
    proportions: Mapping[str, float]
    sequences_in_a_row: float = 1.0


# Cut, micro-batch, checkpoints, state and proportion of the public application. BERT-Large has a proportion of 0.15 on
# IPU 0, which the space does not have.
PUBLISHED_PLANS = {
    BASE.name: Plan((0, 4, 4, 4), 0, 32, every_layer=True, state_on_chip=False, proportion=0.25),
    LARGE.name: Plan((3, 7, 7, 7), 0, 8, every_layer=True, state_on_chip=False, proportion=0.25),
}
PUBLISHED_TASKS = {
    BASE.name: PublishedTask(512, {f"IPU{ipu}": 0.25 for ipu in range(4)}),
    LARGE.name: PublishedTask(1752, {"IPU0": 0.15, "IPU1": 0.25, "IPU2": 0.25, "IPU3": 0.25}, 1.17),
}
