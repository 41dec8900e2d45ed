"""The check of a unit test: it must pass for right layers, and catch every planted fault."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ipu_course.lessons.numerics_layer_by_layer.layer_values import half_ulp
from ipu_course.lessons.numerics_layer_by_layer.planted_faults import (
    TESTED,
    USUAL_INPUTS,
    WIDTH,
    SoftmaxWithoutMaximum,
    in_half,
)


class _ThereAndBack(nn.Module):
    """Values plus 8,192, minus 8,192: float16 numbers are 8 apart there, so values of 1,000 err by up to 0.4 %."""

    def forward(self, x: Tensor) -> Tensor:
        return (x + 8192.0) - 8192.0


class UnitTestCase(NamedTuple):
    """A layer, its inputs, how often it rounds, whether the test must pass, and the hint if it does not do so."""

    layer: nn.Module
    inputs: Tensor
    roundings: int
    passes: bool
    hint: str


def reference_check(layer: nn.Module, inputs: Tensor, roundings: int) -> bool:
    """Compare ``layer`` in float16 with float64, within ``roundings`` half ulps of the largest exact output."""
    exact = copy.deepcopy(layer).double()(inputs.double())
    tolerance = roundings * half_ulp(exact.abs().max())
    return bool(((in_half(layer, inputs).double() - exact).abs() <= tolerance).all())


def unit_test_cases() -> list[UnitTestCase]:
    """Return what the learner's test is tried on."""
    cases = []
    for each in TESTED:
        tight = (
            f"Your test fails for a right layer ({each.name}). It rounds {each.roundings} times, and each rounding "
            "errs by up to half an ulp of the largest output."
        )
        cases += [
            UnitTestCase(each.right(), each.inputs, each.roundings, True, tight),
            UnitTestCase(each.right(), USUAL_INPUTS, each.roundings, True, tight),
        ]
    torch_state = torch.get_rng_state()
    torch.manual_seed(0)
    linear = nn.Linear(WIDTH, 16).half()
    torch.set_rng_state(torch_state)
    cases.append(UnitTestCase(linear, USUAL_INPUTS, 1, True, "Your test fails for an nn.Linear, which is right. "
                          "Compare with the same weights: those of the layer, made double."))  # fmt: skip
    for each in TESTED:
        missed = f"Your test passes a layer with a planted fault ({each.name})."
        if each.name == "directions":
            missed = "Your test passes a layer that gives NaN. A comparison with NaN is never true."
        cases.append(UnitTestCase(each.faulty(), each.inputs, each.roundings, False, missed))
    loose = (
        "Your test passes {}. Is your tolerance a fixed number, or a fixed percentage? It has to follow the size "
        "of the outputs and the number of roundings."
    )
    narrow = (5 + torch.rand(8, WIDTH, generator=torch.Generator().manual_seed(5))).half()
    cases += [
        UnitTestCase(SoftmaxWithoutMaximum(), narrow, 4, False, loose.format("outputs of 0.0025 instead of 0.0012")),
        UnitTestCase(_ThereAndBack(), TESTED[1].inputs, 2, False, loose.format("outputs that err by 0.4 %")),
    ]
    return cases


def float64_hint(check_layer: Any) -> str | None:
    """Return a hint unless the test passes all right layers, and fails all others."""
    if not callable(check_layer):
        return "check_layer should be a function of a layer, its inputs and the number of roundings."
    for case in unit_test_cases():
        before = {name: each.dtype for name, each in case.layer.state_dict().items()}
        found = check_layer(case.layer, case.inputs.clone(), case.roundings)
        if isinstance(found, np.bool_) or (isinstance(found, Tensor) and found.numel() == 1):
            found = bool(found)
        if not isinstance(found, bool):
            return f"check_layer returns True or False; yours returned {_shown(found)}."
        if {name: each.dtype for name, each in case.layer.state_dict().items()} != before:
            return "Your test changes the type of the layer that it tests. Make a copy: copy.deepcopy(layer)."
        if found is not case.passes:
            return case.hint
    return None


def _shown(found: Any) -> str:
    return f"a tensor of shape {list(found.shape)}" if isinstance(found, Tensor) else repr(found)
