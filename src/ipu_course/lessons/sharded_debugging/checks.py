"""The exercises of the debugging lesson: the first stage that differs, and a placement with two faults."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any, Callable

import torch
from torch import Tensor, nn

import poptorch
from ipu_course.checks import check

LESSON = "07"
BLOCKS = ("B1", "B2", "B3", "B4")
ENOUGH = 64
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


def check_placement(strategy: object) -> None:
    """Exercise 2: B1 to B4 as four stages of a pipeline, in the order of the data, each on an IPU of its own."""
    check(
        LESSON,
        "Exercise 2",
        {"strategy": strategy},
        lambda: _placement_hint(strategy),
        "The stages follow the data, and each has an IPU and its memory for itself.",
    )


@dataclass(frozen=True)
class Case:
    """Two runs to compare: the stage to be named, and what an answer overlooks that names another."""

    reference: dict[str, Tensor]
    device: dict[str, Tensor]
    expected: str | None
    hint: str


def _stages(**changed: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Four stages of 400 values, and the same as a device gives them in fp16, but for those that are ``changed``."""
    random = torch.Generator().manual_seed(7)
    reference = {name: torch.randn(1, 400, generator=random) for name in BLOCKS}
    device = {name: changed.get(name, value.half()) for name, value in reference.items()}
    return reference, device


def _with(value: Tensor, place: int, number: float) -> Tensor:
    copy = value.half()
    copy[0, place] = number
    return copy


def cases() -> tuple[Case, ...]:
    """Pairs of runs, each of which only answers with a certain misunderstanding get wrong; the plainest come first."""
    exact, _ = _stages()
    large, tiny = {"B1": 1000 * exact["B1"]}, {"B1": 1e-3 * exact["B1"]}
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


def _placement_hint(strategy: object) -> str | None:
    if isinstance(strategy, poptorch.ShardedExecution):
        return (
            "Sharded execution runs with this fault, but does not repair it: one IPU at a time. Keep "
            "PipelinedExecution, and put the stages right."
        )
    if not isinstance(strategy, poptorch.PipelinedExecution):
        return f"strategy is to be a poptorch.PipelinedExecution(...); you wrote {strategy!r}."
    try:
        stages = [strategy.stage(block) for block in BLOCKS]
    except AssertionError:
        return "A block is in no stage: the network enters B1, B2, B3 and B4, and each needs its place."
    if len({id(stage) for stage in stages}) < len(BLOCKS):
        return "Two blocks are in one stage. That runs, but four stages are wanted: one for each block."
    return _order_hint(strategy) or _ipus_hint(stages)


class _FourBlocks(nn.Module):
    """A number through four blocks: all that it takes to ask PopTorch about their order."""

    def forward(self, x: Tensor) -> Tensor:
        for block in BLOCKS:
            with poptorch.Block(block):
                x = x + 1
        return x


def _order_hint(strategy: poptorch.PipelinedExecution) -> str | None:
    options = poptorch.Options()
    options.showCompilationProgressBar(False)
    options.setExecutionStrategy(copy.deepcopy(strategy))
    options.deviceIterations(ENOUGH)  # to fill any pipeline of four stages
    model = poptorch.inferenceModel(_FourBlocks(), options)
    try:
        model.compile(torch.zeros(ENOUGH))
    except poptorch.Error as problem:
        return (
            "PopTorch still refuses the order. The data goes from B1 over B2 and B3 to B4; list the stages so. "
            f"It says: {str(problem).split(': ', 1)[-1]}"
        )
    return None


def _ipus_hint(stages: list[poptorch.Stage]) -> str | None:
    # PopTorch has no public way to ask a stage for its IPU; the attribute is the same in Graphcore's package.
    ipus = [number if stage._ipu is None else stage._ipu for number, stage in enumerate(stages)]
    for number, ipu in enumerate(ipus):
        if ipu in ipus[:number]:
            return (
                f"PopTorch accepts that, but {BLOCKS[ipus.index(ipu)]} and {BLOCKS[number]} share IPU {ipu}: they take "
                "turns, and another IPU has nothing to do. No error tells you so, only the profile."
            )
    if max(ipus) >= len(BLOCKS):
        return f"The highest IPU is {max(ipus)}: that takes {max(ipus) + 1} IPUs. Four are enough, 0 to 3."
    if ipus != sorted(ipus):
        return "Each stage has an IPU, but neighbours in the pipeline are not neighbours on the links: use 0, 1, 2, 3."
    return None
