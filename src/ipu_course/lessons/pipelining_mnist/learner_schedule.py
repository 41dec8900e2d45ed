"""The schedule that a learner's function describes, drawn as it is."""

from __future__ import annotations

from typing import Callable

from ipu_course import figures, show
from ipu_course.exercises import open_parts
from ipu_course.schedule import Schedule, check_counts, in_order, problems

When = Callable[[int, int], "tuple[int, int]"]
"""``when(stage, micro_batch)`` returns the pipeline steps of its forward and of its backward pass, from 0."""


def show_schedule(when: When, stages: int = 4, micro_batches: int = 10) -> None:
    """Show what every IPU does when, with the passes that break a rule in a frame.

    ``when(stage, micro_batch)`` returns the steps of the forward and of the backward pass, all counted from 0.
    """
    if open_parts("when", when):
        print("Write when(stage, micro_batch) first: its schedule is then drawn here.")
        return
    try:
        schedule = schedule_of(when, stages, micro_batches)
    except Exception:  # whatever a learner's code raises, the check names it
        print("This schedule cannot be drawn: the check below says why.")
        return
    found = len(problems(schedule))
    point = f"Your schedule takes {schedule.steps} pipeline steps, and " + (
        f"{found} of its passes break a rule." if found else "no pass breaks a rule."
    )
    show.drawing(figures.schedule(schedule, title="Your schedule of one weight update"), point)


def schedule_of(when: When, stages: int, micro_batches: int) -> Schedule:
    """Return the schedule that ``when(stage, micro_batch)`` describes, whether it breaks a rule or not.

    Each step has a half for forward and then one for backward passes. Raises ``ValueError`` for counts below 1, and
    where ``when`` does not return two whole numbers from 0 on.
    """
    check_counts(stages, micro_batches)
    forward, backward = [], []
    for stage in range(stages):
        for micro_batch in range(micro_batches):
            first, second = _two_steps(when, stage, micro_batch)
            forward.append((stage, micro_batch, 2 * first))
            backward.append((stage, micro_batch, 2 * second + 1))
    return Schedule(stages, micro_batches, in_order(forward, backward))


def _two_steps(when: When, stage: int, micro_batch: int) -> tuple[int, int]:
    answer: object = when(stage, micro_batch)
    if isinstance(answer, (tuple, list)) and len(answer) == 2:
        steps = [int(each) for each in answer if isinstance(each, (int, float)) and float(each).is_integer()]
        if len(steps) == 2 and min(steps) >= 0 and not any(isinstance(each, bool) for each in answer):
            return steps[0], steps[1]
    raise ValueError(
        f"when({stage}, {micro_batch}) returned {answer!r}; it has to return two whole numbers from 0 on, the steps of "
        "the forward and of the backward pass"
    )
