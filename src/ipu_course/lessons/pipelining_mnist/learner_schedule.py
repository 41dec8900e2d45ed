"""The schedule that a learner's function describes, drawn as it is."""

from __future__ import annotations

from ipu_course import figures, show
from ipu_course.exercises import open_parts
from ipu_course.schedule import When, problems, schedule_of


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
