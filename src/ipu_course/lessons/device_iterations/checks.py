"""The exercises on device iterations: a mean from a sum, an answer in time, and a call of the right length."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ipu_course.checks import check, whole_number_hint
from ipu_course.lessons.device_iterations.long_calls import left_out

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule

LESSON = "03"

MICRO_BATCH, ACCUMULATION, ITERATIONS = 16, 2, 4
MICRO_BATCHES = ACCUMULATION * ITERATIONS
NEAR = 1e-3  # of the right value: fp32 sums in another order differ far less

MOST_SECONDS = 0.004

EPOCH, IMAGES_PER_UPDATE = 50_000, 512
MOST_ITERATIONS, MOST_LEFT_OUT, UPDATES_AT_A_RATE = 16, 1_000, 12

# What learners divide the sum by, and what they take it for.
_DIVISORS = (
    (1, "That is the sum itself: it grows with the number of micro-batches in a call."),
    (ITERATIONS, "You divided by the device iterations. Each of them adds the losses of 2 micro-batches."),
    (ACCUMULATION, "You divided by the accumulation. The loop runs 4 times, and adds 2 losses each time."),
    (
        MICRO_BATCH * MICRO_BATCHES,
        "You divided by the images. Each micro-batch's loss is a mean over its images already.",
    ),
    (MICRO_BATCH, "You divided by the images of a micro-batch. Its loss is a mean over them already."),
)


def check_mean_loss(mean_loss: object, all_losses: Tensor) -> None:
    """Exercise 1: the mean of a call's losses, from what ``OutputMode.Sum`` returned."""
    check(
        LESSON,
        "Exercise 1",
        {"mean_loss": mean_loss},
        lambda: _mean_hint(mean_loss, all_losses),
        "4 x 2 losses were added, and each was a mean over its 16 images.",
    )


def check_in_time(iterations: object, modelled: ModelledModule | None) -> None:
    """Exercise 2: the most device iterations of the modelled small network whose call takes at most 4 ms."""
    check(
        LESSON,
        "Exercise 2",
        {"iterations": iterations},
        lambda: _in_time_hint(iterations, modelled),
        "One more would be late. Throughput and latency pull in opposite directions."
        if modelled
        else "How long a call takes cannot be checked here: there is no IPU Model.",
    )


def check_call(iterations: object) -> None:
    """Exercise 3: at most 16 iterations and 1,000 images left out, and a rate that changes after 12 updates."""
    check(
        LESSON,
        "Exercise 3",
        {"iterations": iterations},
        lambda: _call_hint(iterations),
        "12 updates in a call: the rate changes between two calls, and 848 of 50,000 images are left out.",
    )


def _mean_hint(answer: object, all_losses: Tensor) -> str | None:
    if isinstance(answer, Tensor):
        if answer.numel() != 1:
            return f"mean_loss is one number; yours has the shape {list(answer.shape)}."
        answer = answer.item()
    if isinstance(answer, bool) or not isinstance(answer, (int, float)):
        return f"mean_loss is a number; you wrote {answer!r}."
    right = torch.as_tensor(all_losses).float().mean().item()
    if abs(answer / right - 1) < NEAR:
        return None
    for divisor, hint in _DIVISORS:
        if abs(answer / (right * MICRO_BATCHES / divisor) - 1) < NEAR:
            return hint
    return "Start from summed_loss, and divide it by the number of losses that were added."


def _in_time_hint(value: object, modelled: ModelledModule | None) -> str | None:
    wrong = whole_number_hint("iterations", value)
    if wrong or not isinstance(value, int) or not modelled:
        return wrong
    chosen = modelled.profile(device_iterations=value)
    if chosen.call_seconds > MOST_SECONDS:
        if chosen.device_seconds_per_call <= MOST_SECONDS:
            return "The IPU alone would be in time, but the host's part of the call counts too: look at call_seconds."
        return f"A call with {value} takes {chosen.call_seconds * 1e3:.1f} ms (modelled): too late."
    if modelled.profile(device_iterations=value + 1).call_seconds <= MOST_SECONDS:
        return f"A call with {value} takes {chosen.call_seconds * 1e3:.1f} ms (modelled). More would be in time too."
    return None


def _call_hint(value: object) -> str | None:
    wrong = whole_number_hint("iterations", value)
    if wrong or not isinstance(value, int):
        return wrong
    if value > MOST_ITERATIONS:
        return f"At most {MOST_ITERATIONS} are allowed: the host must hold the images of a whole call."
    missing = left_out(EPOCH, IMAGES_PER_UPDATE * value)
    if UPDATES_AT_A_RATE % value:
        return (
            f"A call would make {value} updates, and the host can change the rate only between calls: never after "
            f"exactly {UPDATES_AT_A_RATE} updates."
        )
    if missing > MOST_LEFT_OUT:
        return f"{missing:,} of 50,000 images would be left out."
    if value < UPDATES_AT_A_RATE:
        return f"{value} works ({missing:,} images are left out), but a larger number does too."
    return None
