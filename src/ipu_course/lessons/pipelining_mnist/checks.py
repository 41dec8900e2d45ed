"""The exercises of the pipelining lesson: two blocks to a stage, and a pipeline that is busy enough."""

from __future__ import annotations

import poptorch
from ipu_course.checks import check, whole_number_hint
from ipu_course.schedule import pipelined

LESSON = "06"
BLOCKS = ("B1", "B2", "B3", "B4")
TWO_STAGES = 2
SMALLEST_FOR_TWO = 2 * TWO_STAGES - 1

STAGES = 4
LEAST_UTILISATION = 0.8
MICRO_BATCH = 40
IMAGES_PER_CALL = 4800
# Utilisation is m / (m + 6) for 4 stages: 24 / 30 is 80 %.
SMALLEST_BUSY = 24


def check_two_stages(strategy: object, accumulation: object) -> None:
    """Exercise 1: B1 and B2 on IPU 0, B3 and B4 on IPU 1, with the smallest accumulation that works."""
    check(
        LESSON,
        "Exercise 1",
        {"strategy": strategy, "accumulation": accumulation},
        lambda: _strategy_hint(strategy) or _smallest_accumulation_hint(accumulation),
        "Two blocks to a stage, and 2 x 2 - 1 = 3 micro-batches fill two stages.",
    )


def check_busy_call(accumulation: object, device_iterations: object) -> None:
    """Exercise 2: the smallest accumulation with 80 % utilisation on 4 IPUs, in calls of 4,800 images."""
    check(
        LESSON,
        "Exercise 2",
        {"accumulation": accumulation, "device_iterations": device_iterations},
        lambda: _busy_hint(accumulation) or _call_hint(accumulation, device_iterations),
        "24 / (24 + 6) = 80 %, and 40 x 24 x 5 = 4,800 images.",
    )


def _strategy_hint(strategy: object) -> str | None:
    if isinstance(strategy, poptorch.ShardedExecution):
        return (
            "ShardedExecution takes the same stages, but runs one IPU at a time. Use PipelinedExecution, so "
            "that both IPUs work on different micro-batches at once."
        )
    if not isinstance(strategy, poptorch.PipelinedExecution):
        return f"strategy is to be a poptorch.PipelinedExecution(...); you wrote {strategy!r}."
    try:
        stages = [strategy.stage(block) for block in BLOCKS]
    except AssertionError:
        return "Not every block is in a stage: the model enters B1, B2, B3 and B4, and each needs its place."
    return _grouping_hint(stages) or _ipu_hint(stages)


def _grouping_hint(stages: list[poptorch.Stage]) -> str | None:
    """``stages`` holds the stage of each block."""
    count = len({id(stage) for stage in stages})
    if count == len(BLOCKS):
        return (
            "That is still one stage per block: every argument of PipelinedExecution is a stage. Name two "
            'blocks in one stage, as in Stage("B1", "B2").'
        )
    if count != TWO_STAGES:
        return f"These are {count} stage(s), and {TWO_STAGES} are asked for: two blocks in each."
    borders = [one is not following for one, following in zip(stages, stages[1:])]
    if borders == [False, True, False]:
        return None
    if sum(borders) > 1:
        return (
            "The data would go back and forth between the stages: it flows from B1 to B4, and a stage holds "
            "neighbouring blocks."
        )
    return "One stage has three blocks, the other has one: put B1 and B2 in the first, B3 and B4 in the second."


def _ipu_hint(stages: list[poptorch.Stage]) -> str | None:
    # PopTorch has no public way to ask a stage for its IPU; the attribute is the same in Graphcore's package.
    first, second = stages[0]._ipu, stages[-1]._ipu
    if first is None or second is None:
        return "Say on which IPU each stage runs, with .ipu(0) and .ipu(1) after the stages."
    if first == second:
        return (
            f"Both stages are on IPU {first}. Stages on one IPU run one after another: nothing is pipelined, "
            "and no second memory is used. Give each stage an IPU of its own."
        )
    if (first, second) != (0, 1):
        return f"The stages are on the IPUs {first} and {second}: B1 and B2 go to IPU 0, B3 and B4 to IPU 1."
    return None


def _smallest_accumulation_hint(value: object) -> str | None:
    wrong = whole_number_hint("accumulation", value)
    if wrong or value == SMALLEST_FOR_TWO:
        return wrong
    if value == 2 * STAGES - 1:
        return "The stages are right, but 7 is the minimum for four of them: what does 2 N - 1 give for N = 2?"
    if value == 2 * TWO_STAGES:
        return (
            "The stages are right, but 4 = 2 N counts the last stage twice: its forward and backward pass "
            "follow each other in one step, so PopTorch counts it once."
        )
    if isinstance(value, int) and value < SMALLEST_FOR_TWO:
        return (
            f"The stages are right, but PopTorch refuses {value}: a micro-batch passes the stages forwards "
            "and then backwards, so the backward stages count too. What does 2 N - 1 give for N = 2?"
        )
    return f"The stages are right, and {value} works, but a smaller accumulation does too: 2 N - 1 for N = 2."


def _busy_hint(accumulation: object) -> str | None:
    wrong = whole_number_hint("accumulation", accumulation)
    if wrong or not isinstance(accumulation, int) or accumulation == SMALLEST_BUSY:
        return wrong
    if accumulation == IMAGES_PER_CALL // MICRO_BATCH:
        return (
            f"{accumulation} is the number of micro-batches in a whole call. Accumulation counts only those "
            "of one weight update; the device iterations repeat the update."
        )
    if accumulation == SMALLEST_BUSY // 2:
        return (
            "12 / (12 + 3) is 80 %, but 3 = N - 1 steps is the way forwards only. The way back takes as "
            "many: ramp-up and ramp-down add 2 (N - 1) = 6 steps to the micro-batches."
        )
    if accumulation == 4 * 2 * STAGES:
        return "32 / (32 + 8) is 80 %, but 8 = 2 N. Ramp-up and ramp-down add 2 (N - 1) = 6 steps."
    if accumulation < SMALLEST_BUSY:
        reached = 100 * pipelined(STAGES, accumulation).utilisation
        return f"With {accumulation} micro-batches the IPUs are busy {reached:.1f} % of the time, below 80 %."
    return f"{accumulation} is enough, but not the smallest: solve m / (m + 6) = 0.8 for m."


def _call_hint(accumulation: object, device_iterations: object) -> str | None:
    wrong = whole_number_hint("device_iterations", device_iterations)
    if wrong or not isinstance(accumulation, int) or not isinstance(device_iterations, int):
        return wrong
    images = MICRO_BATCH * accumulation * device_iterations
    if images == IMAGES_PER_CALL:
        return None
    if device_iterations == IMAGES_PER_CALL // MICRO_BATCH:
        return (
            f"The accumulation is right. {device_iterations} counts micro-batches, but a device iteration "
            f"is a whole weight update: {accumulation} micro-batches of {MICRO_BATCH} images."
        )
    if device_iterations == IMAGES_PER_CALL // accumulation:
        return (
            f"The accumulation is right. {IMAGES_PER_CALL:,} / {accumulation} leaves out the micro-batch: "
            f"accumulation counts micro-batches of {MICRO_BATCH} images, not images."
        )
    return (
        f"The accumulation is right. A call would take {MICRO_BATCH} x {accumulation} x "
        f"{device_iterations} = {images:,} images, not {IMAGES_PER_CALL:,}."
    )
