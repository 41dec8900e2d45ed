"""The exercises of the pipelining lesson: a schedule, its stashes, the host's share, and a placement that fits."""

from __future__ import annotations

from ipu_course.exercises import Exercise, Number, Numbers
from ipu_course.lessons.pipelining_mnist.learner_schedule import schedule_of
from ipu_course.lessons.pipelining_mnist.placements import PLACEMENTS, placement_hint, update_milliseconds
from ipu_course.schedule import Schedule, pipelined, problems

STAGES, MICRO_BATCHES = 4, 10
SHORTEST = pipelined(STAGES, MICRO_BATCHES)
BACKWARD = 2.0  # what a backward pass usually takes, in forward passes


def when_hint(when: object) -> str | None:
    """Return what is wrong with ``when(stage, micro_batch)`` for four stages, or ``None``."""
    if not callable(when):
        return f"when has to be a function of (stage, micro_batch); you wrote {when!r}."
    try:
        schedule = schedule_of(when, STAGES, MICRO_BATCHES)
    except ValueError as problem:
        return f"{problem}."
    found = problems(schedule)
    if found:
        more = "" if len(found) == 1 else f" ({len(found) - 1} more passes break a rule.)"
        return f"{found[0].words}{more}"
    if min(each.step for each in schedule.passes) > 0:
        return "Your schedule breaks no rule, but it begins too late. Steps count from 0: the first pass is in step 0."
    if schedule.steps > SHORTEST.steps:
        return (
            f"Your schedule breaks no rule, but it takes {schedule.steps} steps, and {SHORTEST.steps} are enough. "
            "Start every pass in the first step in which its IPU is free and its input is there."
            f"{_stash_words(schedule)}"
        )
    return None


def _stash_words(schedule: Schedule) -> str:
    """Return why a schedule that takes no longer than the shortest is worse all the same."""
    if schedule.busy_share(BACKWARD) < SHORTEST.busy_share(BACKWARD):
        return ""
    return (
        f" (Measured in time yours is as fast, but {schedule.stash(0)} micro-batches wait in the stash of IPU 0 for "
        f"their backward pass, instead of {SHORTEST.stash(0)}. That is the reason to begin backward passes early.)"
    )


WHEN = Exercise(
    names=("when",),
    find_hint=when_hint,
    praise=f"No pass breaks a rule, and {MICRO_BATCHES} micro-batches take {SHORTEST.steps} steps.",
)

# m / (m + 7) is 0.9 for m = 63. 2 (8 - 1) + 1 micro-batches wait on the first of eight IPUs in the grouped schedule,
# and 8 in the interleaved one.
STASHES = Numbers(
    Number(
        "micro_batches",
        63,
        wrong={
            64: "64 are enough, and one less is, too.",
            72: "72 is 0.9 of m + N. With N = 8, the time has m + N - 1 steps of full length.",
            126: "126 counts steps, m / (m + 14). The exercise asks for a percentage of the time.",
            27: "27 is the number for four IPUs.",
        },
        otherwise="Solve m / (m + 8 - 1) = 0.9 for m.",
    ),
    Number(
        "grouped",
        15,
        wrong={
            7: "7 is the number for four stages: set the explorer to eight.",
            8: "8 is the interleaved schedule's number: choose the grouped one.",
            13: "13 is IPU 1's stash: read the row of IPU 0.",
            17: "17 is 2 N + 1 with N = 8. The explorer counts fewer: read the row of IPU 0.",
            20: "20 is the accumulation: most micro-batches have gone back through IPU 0 before the last one arrives.",
        },
        otherwise="Set the explorer to 8 stages, accumulation 20 and the grouped schedule, then read the row of IPU 0.",
    ),
    Number(
        "interleaved",
        8,
        wrong={
            4: "4 is the number for four stages: set the explorer to eight.",
            9: "9 is N + 1 with N = 8. The explorer counts one less.",
            15: "15 is the grouped schedule's number: choose the interleaved one.",
        },
        otherwise="Keep 8 stages and accumulation 20, choose the interleaved schedule, and read the row of IPU 0.",
    ),
    praise="The grouped schedule keeps nearly twice as many micro-batches waiting on the first IPU.",
)

# 9.1 ms (trace) to 9.9 ms (model) of device time in the 66.5 ms of a call: 13.7 to 14.9 %, a factor of 6.7 to 7.3.
HOST = Numbers(
    Number(
        "working",
        14.3,
        tolerance=1.6,
        wrong={
            0.143: "That is a share between 0 and 1; the exercise asks for a percentage.",
            85.7: "That is how long the IPUs wait. How long do they work?",
            62.5: "62.5 % is the pipeline's utilisation while it runs. How much of the whole call is that?",
            76.9: "76.9 % is the pipeline's utilisation while it runs. How much of the whole call is that?",
        },
        otherwise="Divide the time of a call on the device by the time from one call to the next, 1,000 / 15.04 ms.",
    ),
    Number(
        "speed_up",
        7.0,
        tolerance=0.5,
        wrong={
            0.143: "You divided the device's time by the time from call to call: divide the other way round.",
            15.0: "15 is the number of calls per second. How many ms pass from call to call?",
            6.0: "The time from call to call has to shrink to the device's own time: divide the two times.",
        },
        otherwise="The host is fast enough when it prepares a call in the time that the device needs for one.",
    ),
    praise="Until the host is about seven times as fast, no better pipeline can train this network faster.",
)

PLACEMENT = Exercise(
    names=("place",),
    find_hint=placement_hint,
    praise=f"Every IPU fits, and the update is at least 95 % as fast as with the best of {PLACEMENTS:,} placements.",
    score=update_milliseconds,
)
