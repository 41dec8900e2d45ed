"""The exercises of the debugging lesson: the first stage that differs, and a placement with a silent fault."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, Mapping

import torch
from torch import Tensor

from ipu_course.checks import check
from ipu_course.exercises import as_number

LESSON = "07"
BLOCKS = ("B1", "B2", "B3", "B4")
IDLE, CROWDED = 2, 1
IDLE_HINTS: Mapping[float, str] = {
    0: "IPU 0 has less work than the others, but it has some. Which one has none?",
    1: "IPU 1 has the most work of all. Which one has none?",
    3: "The IPUs count from 0: the third one is IPU 2. IPU 3 has work.",
}
CROWDED_HINTS: Mapping[float, str] = {
    0: "IPU 0 has the least work of those that have any. Which takes longest?",
    2: "The IPUs count from 0: the second one is IPU 1. IPU 2 has no work.",
    3: "IPU 3 has one stage, and its fullest tile holds the most weights. Which IPU takes about twice as long?",
}
_RELATIVE = "Compare with the size of the reference: divide by its largest value."


def check_first_difference(first_difference: object) -> None:
    """Exercise 1: a function of (reference, device) that names the first stage more than 2 % apart, or ``None``."""
    check(
        LESSON,
        "Exercise 1",
        {"first_difference": first_difference},
        lambda: _function_hint(first_difference),
        "The first stage in order counts, and a NaN counts as a difference.",
    )


def check_silent_fault(idle: object, crowded: object) -> None:
    """Exercise 2: the IPU without work and the one with two stages, read from the profile of a wrong placement."""
    check(
        LESSON,
        "Exercise 2",
        {"idle": idle, "crowded": crowded},
        lambda: _ipu_hint("idle", idle, IDLE, IDLE_HINTS) or _ipu_hint("crowded", crowded, CROWDED, CROWDED_HINTS),
        "IPU 1 has the work of two stages, and IPU 2 waits all the time.",
    )


def _ipu_hint(name: str, answer: object, wanted: int, hints: Mapping[float, str]) -> str | None:
    number = as_number(answer)
    if number is None:
        return f"{name} is the number of an IPU; you wrote {answer!r}."
    return None if number == wanted else hints.get(number, "The IPUs count from 0, so their numbers are 0 to 3.")


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
            "Several stages differ, and the first of them is wanted: what follows only inherits the fault.",
        ),
        Case(
            *_stages(B2=_with(exact["B2"], peak, 0.0)),
            "B2",
            "One wrong number in a stage is a fault, too: a mean or a sum over the stage hides it.",
        ),
        Case(
            *_stages(B3=_with(exact["B3"], 5, math.nan)),
            "B3",
            "A NaN slips through: every comparison with a NaN is False, so ask for not (... <= ...).",
        ),
        Case(
            *_stages(B2=_with(exact["B2"], 5, math.inf), B4=_with(exact["B4"], 5, math.nan)),
            "B2",
            "An inf in the second stage is the first fault there; what follows only inherits it.",
        ),
        Case(large, {"B1": large["B1"] * 1.005}, None, f"Half a per cent of 1,000 is 5, and no fault. {_RELATIVE}"),
        Case(
            mixed,
            {"B1": (mixed["B1"] + 0.25).half()},
            None,
            "0.25 is a large difference for the small values there, but the stage's largest value is 1,000. Compare "
            "all differences with the stage's largest value, not each with its own.",
        ),
        Case(tiny, {"B1": tiny["B1"] * 1.5}, "B1", f"Small values that are half as large again do differ. {_RELATIVE}"),
    )


def _function_hint(function: object) -> str | None:
    if not callable(function):
        return f"first_difference is to be a function of (reference, device); you wrote {function!r}."
    for case in cases():
        hint = _case_hint(function, case)
        if hint:
            return hint
    return None


def _case_hint(function: Callable[..., Any], case: Case) -> str | None:
    try:
        answer = function(dict(case.reference), dict(case.device))
    except (TypeError, RuntimeError) as problem:
        return _raised_hint(problem)
    if answer == case.expected and (answer is None or isinstance(answer, str)):
        return None
    if isinstance(answer, bool) or not (answer is None or isinstance(answer, str)):
        return f"Return the name of a stage, such as 'B2', or None; yours returned {answer!r}."
    return case.hint


def _raised_hint(problem: Exception) -> str:
    if "Half" in str(problem):
        return "The device's values are float16, the reference's float32: bring them together, with .float()."
    return f"It stopped with {type(problem).__name__}: {problem}. It is called as first_difference(reference, device)."
