"""The numeric examples (poptorch-optim.md, section 10), from constructor to updated weight.

One scalar weight w=1, gradient g=2 per micro-batch; A micro-batches, R replicas and D updates in one call.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from optim_support import parameter

from ipu_model.compute.optimisers.updater import Updater
from poptorch import optim
from poptorch._optimizer_attributes import group_of, read_spec

ROWS: list[tuple[str, Any, dict[str, Any], float]] = [
    ("SGD", lambda p: optim.SGD(p, lr=0.1), {}, 0.8),
    ("A=4, Mean", lambda p: optim.SGD(p, lr=0.1), {"A": 4}, 0.8),
    ("A=4, Sum", lambda p: optim.SGD(p, lr=0.1), {"A": 4, "mean": False}, 0.2),
    ("R=2, A=2, Mean", lambda p: optim.SGD(p, lr=0.1), {"A": 2, "R": 2}, 0.8),
    ("D=3", lambda p: optim.SGD(p, lr=0.1), {"D": 3}, 0.4),
    ("momentum, D=2", lambda p: optim.SGD(p, lr=0.1, momentum=0.9), {"D": 2}, 0.42),
    ("dampening", lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5), {}, 0.9),
    ("weight decay", lambda p: optim.SGD(p, lr=0.1, weight_decay=0.5), {}, 0.75),
    ("clipping", lambda p: optim.SGD(p, lr=0.1, max_grad_norm=0.5), {}, 0.95),
    ("loss scaling", lambda p: optim.SGD(p, lr=0.1, loss_scaling=128), {}, 0.8),
    ("Adam", lambda p: optim.Adam(p, lr=0.1), {}, 0.9),
    ("AdamW", lambda p: optim.AdamW(p, lr=0.1, weight_decay=0.1), {}, 0.89),
    ("LAMB", lambda p: optim.LAMB(p, lr=0.1, weight_decay=0.0), {}, 0.9),
    ("RMSprop", lambda p: optim.RMSprop(p, lr=0.1), {}, 0.0),
    ("RMSprop, TF", lambda p: optim.RMSprop(p, 0.1, eps=0.0, use_tf_variant=True), {}, 1 - 0.2 / 1.03**0.5),
    # The same for the combined variant, which the reference calls mathematically equal.
    ("combined, D=2", lambda p: optim.SGD(p, lr=0.1, momentum=0.9, use_combined_accum=True), {"D": 2}, 0.42),
    ("combined, A=4", lambda p: optim.SGD(p, 0.1, weight_decay=0.5, use_combined_accum=True), {"A": 4}, 0.75),
    # And for native optimisers.
    ("torch SGD, D=2", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), {"D": 2}, 0.42),
    ("torch AdamW", lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1), {}, 0.89),
]  # fmt: skip


def after_one_call(make: Any, A: int = 1, R: int = 1, D: int = 1, mean: bool = True) -> float:
    weight = parameter(1.0)
    optimizer = make([weight])
    spec, container = read_spec(optimizer), torch.ones(())
    updater = Updater(spec, {"w": container}, {"w": torch.float32}, group_of(optimizer, {"w": weight}))
    for _ in range(D):
        total = torch.tensor(2.0 * A * R * spec.loss_scaling)
        updater.step({"w": total}, 1.0 / (A * R) if mean else 1.0)
    return container.item()


@pytest.mark.parametrize(("name", "make", "setting", "expected"), ROWS, ids=[row[0] for row in ROWS])
def test_numeric_example(name: str, make: Any, setting: dict[str, Any], expected: float) -> None:
    assert after_one_call(make, **setting) == pytest.approx(expected, abs=1e-6), name
