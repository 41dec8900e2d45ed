"""The exercises on gradient accumulation: a plan for four IPUs, Sum in place of Mean, and enough of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipu_course.checks import check, number_hint, whole_number_hint
from ipu_course.schedule import pipelined

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule

LESSON = "02"

STAGES = 4
GLOBAL_BATCH = 512
LEAST_UTILISATION = 0.7
# m / (m + 6) is 16 / 22 = 72.7 % and 8 / 14 = 57.1 %: of the divisors of 512, 16 is the smallest that is enough.
PLAN = (32, 16)

MEAN_RATE, MEAN_ACCUMULATION = 0.2, 8
SMALLER_MICRO_BATCH_ACCUMULATION = 16
SUM_RATE = MEAN_RATE / SMALLER_MICRO_BATCH_ACCUMULATION
NEAR = 1e-6

LEAST_SHARE = 0.95
# No accumulation comes closer to the highest rate than this one, which costs no longer to model.
ENDLESS = 4096
BY_COUNTING_STEPS = 38  # 38 / (38 + 2) = 95 %
BY_TIME = 19  # 19 / (19 + 1) = 95 %


def check_plan(micro_batch: object, accumulation: object) -> None:
    """Exercise 1: 512 images an update over four IPUs, at least 70 % busy, the micro-batch as large as possible."""
    check(
        LESSON,
        "Exercise 1",
        {"micro_batch": micro_batch, "accumulation": accumulation},
        lambda: _plan_hint(micro_batch, accumulation),
        "32 x 16 = 512 images, and 16 / (16 + 6) is 72.7 %. The next larger micro-batch, 64, leaves 57.1 %.",
    )


def check_sum(accumulation: object, learning_rate: object) -> None:
    """Exercise 2: half the micro-batch and Sum, with the weights of accumulation 8, Mean and rate 0.2."""
    check(
        LESSON,
        "Exercise 2",
        {"accumulation": accumulation, "learning_rate": learning_rate},
        lambda: _sum_accumulation_hint(accumulation) or _sum_rate_hint(learning_rate),
        "16 micro-batches of 32 images, and Sum is 16 times Mean: 0.2 / 16 = 0.0125.",
    )


def check_enough(smallest: object, modelled: ModelledModule | None) -> None:
    """Exercise 3: the smallest accumulation with 95 % of the modelled IPUs' highest rate."""
    check(
        LESSON,
        "Exercise 3",
        {"smallest": smallest},
        lambda: _enough_hint(smallest, modelled),
        "More accumulation would gain less than 5 %, and cost weight updates."
        if modelled
        else "Without the IPU Model, nothing more than the 2N - 1 rule can be checked here.",
    )


def _plan_hint(micro_batch: object, accumulation: object) -> str | None:
    wrong = whole_number_hint("micro_batch", micro_batch) or whole_number_hint("accumulation", accumulation)
    if wrong or not isinstance(micro_batch, int) or not isinstance(accumulation, int):
        return wrong
    if (micro_batch, accumulation) == PLAN:
        return None
    if (accumulation, micro_batch) == PLAN:
        return (
            "16 x 32 = 512, but these are the wrong way round: 16 is what accumulates, 32 images are a micro-batch. A "
            "smaller micro-batch than needed leaves the tiles with less work in each step."
        )
    if accumulation < 2 * STAGES - 1:
        return f"PopTorch refuses an accumulation of {accumulation}: four stages need at least 2 x 4 - 1 = 7."
    if micro_batch * accumulation != GLOBAL_BATCH:
        images = micro_batch * accumulation
        return f"An update would take {micro_batch} x {accumulation} = {images:,} images, and 512 are asked for."
    reached = pipelined(STAGES, accumulation).utilisation
    if reached < LEAST_UTILISATION:
        return (
            f"{accumulation} / ({accumulation} + 6) is {reached:.1%}, below 70 %. The way through four stages and back "
            "adds 2 x (4 - 1) = 6 steps."
        )
    return f"That is busy {reached:.1%} of the steps, but a larger micro-batch is enough too."


def _sum_accumulation_hint(value: object) -> str | None:
    wrong = whole_number_hint("accumulation", value)
    if wrong or value == SMALLER_MICRO_BATCH_ACCUMULATION:
        return wrong
    if value == MEAN_ACCUMULATION:
        return "With 8 micro-batches of 32 images, 256 share an update. It was 64 x 8 = 512, and is to stay that."
    if value == MEAN_ACCUMULATION // 2:
        return "Half the micro-batch needs more of them, not fewer: an update is to take 512 images as before."
    if value == GLOBAL_BATCH:
        return "512 is the number of images in an update. Accumulation counts micro-batches, of 32 images here."
    return "An update took 64 x 8 = 512 images. How many micro-batches of 32 are that?"


def _sum_rate_hint(value: object) -> str | None:
    wrong = number_hint("learning_rate", value)
    if wrong or not isinstance(value, (int, float)) or abs(value - SUM_RATE) < NEAR:
        return wrong
    right = "The accumulation is right. "
    if abs(value - MEAN_RATE) < NEAR:
        return right + "With the same rate, every step would be 16 times as long: Sum does not divide."
    if abs(value - MEAN_RATE * SMALLER_MICRO_BATCH_ACCUMULATION) < NEAR:
        return right + "That multiplies the rate. Sum makes the gradient larger already, so the rate must shrink."
    if abs(value - MEAN_RATE / MEAN_ACCUMULATION) < NEAR:
        return right + "0.025 is for 8 micro-batches. Now 16 gradients are added."
    if abs(value - MEAN_RATE / GLOBAL_BATCH) < NEAR:
        return (
            right + "That divides by all images of the update. The loss is a mean over its micro-batch already: only "
            "the micro-batches are added."
        )
    return right + "Sum is the mean times the number of micro-batches. Which rate makes up for that?"


def _enough_hint(value: object, modelled: ModelledModule | None) -> str | None:
    wrong = whole_number_hint("smallest", value)
    if wrong or not isinstance(value, int):
        return wrong
    if value < 3:
        return f"PopTorch refuses an accumulation of {value} on two IPUs: the smallest is 2 x 2 - 1 = 3."
    if not modelled:
        return None
    highest = _rate(modelled, ENDLESS)
    share = _rate(modelled, value) / highest
    if share < LEAST_SHARE:
        return f"With {value}, the modelled IPUs reach {share:.1%} of their highest rate: below 95 %."
    if _rate(modelled, max(3, value - 1)) / highest < LEAST_SHARE:
        return None
    if value == BY_COUNTING_STEPS:
        return "38 / (38 + 2) is 95 % of the steps. But steps are not equally long: ask the model."
    if value == BY_TIME:
        return "19 / (19 + 1) is 95 % for a pipeline of equal stages. The model knows these two: ask it."
    return f"{value} is enough ({share:.1%}), but a smaller accumulation is too."


def _rate(modelled: ModelledModule, accumulation: int) -> float:
    return modelled.profile(gradient_accumulation=accumulation).device_samples_per_second
