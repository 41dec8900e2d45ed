"""Exercise 1: pairs of runs to compare, and which misunderstanding fails on each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable

import torch
from torch import Tensor

from ipu_course.lessons.sharded_debugging.network import BLOCKS

_RELATIVE = "Compare with the size of the reference: divide by its largest value."


@dataclass(frozen=True)
class Case:
    """Two runs to compare: the stage to be named, and what an answer overlooks that names another."""

    reference: dict[str, Tensor]
    device: dict[str, Tensor]
    expected: str | None
    hint: str


def _stages(**changed: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return four stages of 400 values and the device's fp16 copies of them, except for those that are ``changed``."""
    random = torch.Generator().manual_seed(7)
    reference = {name: torch.randn(1, 400, generator=random) for name in BLOCKS}
    device = {name: changed.get(name, value.half()) for name, value in reference.items()}
    return reference, device


def _with(value: Tensor, place: int, number: float) -> Tensor:
    copy = value.half()
    copy[0, place] = number
    return copy


def cases() -> tuple[Case, ...]:
    """Return pairs of runs, the plainest first, chosen so that each misunderstanding fails on one of them."""
    exact, _ = _stages()
    large, tiny = {"B1": 1000 * exact["B1"]}, {"B1": 1e-3 * exact["B1"]}
    mixed = {"B1": torch.tensor([[1000.0, 1.0, -0.5, 0.01]])}
    peak = int(exact["B2"].abs().argmax())
    wide = {"B1": torch.randn(1, 10_000, generator=torch.Generator().manual_seed(7))}
    return (
        Case(*_stages(), None, "Nothing is wrong there: fp16 rounds, by up to 0.05 %. Ask for more than 2 %."),
        Case(
            *_stages(B3=exact["B3"].half() - 1),
            "B3",
            "Values that are too small differ as much as those too large: take the size of the difference, with abs().",
        ),
        Case(
            *_stages(B2=2 * exact["B2"].half(), B4=9 * exact["B4"].half()),
            "B2",
            "Several stages differ, and the exercise asks for the first: later stages only inherit the fault.",
        ),
        Case(
            *_stages(B2=_with(exact["B2"], peak, 0.0)),
            "B2",
            "One wrong number in a stage is a fault, too: a mean or a sum over the stage hides it.",
        ),
        Case(
            wide,
            {"B1": _with(wide["B1"], 5, float(wide["B1"][0, 5]) + 1)},
            "B1",
            "One number of 10,000 is wrong there, by a quarter of the largest: a norm, a mean or a sum hides it.",
        ),
        Case(
            *_stages(B3=_with(exact["B3"], 5, math.nan)),
            "B3",
            "A NaN slips through: every comparison with a NaN is False, so ask for not (... <= ...).",
        ),
        Case(
            *_stages(B2=_with(exact["B2"], 5, math.inf), B4=_with(exact["B4"], 5, math.nan)),
            "B2",
            "An inf in the second stage is the first fault there, and later stages only inherit it.",
        ),
        Case(
            large,
            {"B1": large["B1"] * 1.005},
            None,
            f"Half a per cent of 1,000 is 5, which is not a fault. {_RELATIVE}",
        ),
        Case(
            mixed,
            {"B1": (mixed["B1"] + 0.25).half()},
            None,
            "0.25 is a large difference for the small values there, but the stage's largest value is 1,000. Compare "
            "all differences with the stage's largest value, not each with its own.",
        ),
        Case(tiny, {"B1": tiny["B1"] * 1.5}, "B1", f"Small values that are half as large again do differ. {_RELATIVE}"),
    )


def comparison_hint(first_difference: object) -> str | None:
    """Return what a function of (reference, device) overlooks that names the first stage 2 % apart, or ``None``."""
    if not callable(first_difference):
        return f"first_difference has to be a function of (reference, device); you wrote {first_difference!r}."
    for case in cases():
        hint = _case_hint(first_difference, case)
        if hint:
            return hint
    return None


def _case_hint(function: Callable[..., Any], case: Case) -> str | None:
    try:
        answer = function(dict(case.reference), dict(case.device))
    except (TypeError, RuntimeError) as problem:
        return _raised_hint(problem)
    if not (answer is None or isinstance(answer, str)):
        return f"Return the name of a stage, such as 'B2', or None; yours returned {answer!r}."
    return None if answer == case.expected else case.hint


def _raised_hint(problem: Exception) -> str:
    if "Half" in str(problem):
        return "The device's values are float16, the reference's float32: bring them together, with .float()."
    return f"It stopped with {type(problem).__name__}: {problem}. It is called as first_difference(reference, device)."
