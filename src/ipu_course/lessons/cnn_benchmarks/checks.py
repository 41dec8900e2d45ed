"""The exercises of lesson 09: average printed values, choose a batch for a budget, find what a page contradicts."""

from __future__ import annotations

import math

from ipu_course.checks import check, number_hint, whole_number_hint

LESSON = "09"

# Exercise 1: what four instances of one replica each print: images a second of their own replica.
PRINTED = {
    0: (310, 1190, 1210, 1200),
    1: (305, 1205, 1195, 1200),
    2: (298, 1180, 1170, 1190),
    3: (316, 1215, 1225, 1220),
}
CLOSE_ENOUGH = 0.002  # other averages of nearly equal values: harmonic mean, median

# Exercise 2: milliseconds of a batch, of an image on the IPU, of sending an image, and of a call.
PER_BATCH, PER_IMAGE, SEND_IMAGE, CALL, BUDGET = 0.3, 0.05, 0.03, 0.7, 2.0

# Exercise 3: numbers of lines in the table of training command lines.
LINES = range(1, 9)
UNDER_WRONG_HEADING = {5, 6}
MODIFIED = {7, 8}
ODD_LINE = 5


def check_throughput(throughput: object) -> None:
    """Exercise 1: images a second of all four instances, from ``PRINTED``."""
    check(
        LESSON,
        "Exercise 1",
        {"throughput": throughput},
        lambda: _throughput_hint(throughput),
        "The first value of each instance is left out, and the four averages are added up: 4,800 images a second.",
    )


def check_budget(batch: object, rate: object) -> None:
    """Exercise 2: the largest batch whose latency is within the budget, and images a second with it."""
    check(
        LESSON,
        "Exercise 2",
        {"batch": batch, "rate": rate},
        lambda: _batch_hint(batch) or _rate_hint(rate),
        f"{_largest_batch()} images take {_latency(_largest_batch()):.2f} ms, so single calls give "
        f"{_single_call_rate():,.0f} images a second.",
    )


def check_lines(contradicting: object, odd_line: object) -> None:
    """Exercise 3: numbers of the lines that contradict their heading, and of the one with another global batch."""
    check(
        LESSON,
        "Exercise 3",
        {"contradicting": contradicting, "odd_line": odd_line},
        lambda: _contradicting_hint(contradicting) or _odd_line_hint(odd_line),
        "Both Standard lines print the modified network's options, and line 5 trains with a global batch of 200.",
    )


def _throughput_hint(value: object) -> str | None:
    wrong = number_hint("throughput", value)
    if wrong or not isinstance(value, (int, float)):
        return wrong
    later = {instance: values[1:] for instance, values in PRINTED.items()}
    averages = [sum(values) / len(values) for values in later.values()]
    everything = [value for values in PRINTED.values() for value in values]
    counted = [value for values in later.values() for value in values]
    if math.isclose(value, sum(averages), rel_tol=CLOSE_ENOUGH):
        return None
    with_first = sum(everything) / len(everything)
    one_left_out = (sum(everything) - everything[0]) / (len(everything) - 1)
    known = {
        sum(averages) / len(PRINTED): "That is the average of one instance. The four run at the same time, each on "
        "images of its own: what they do in a second adds up.",
        with_first: "That includes the first values, and it is one instance's share.",
        len(PRINTED) * with_first: "That includes the first values. Leave out one from each instance.",
        one_left_out: "Only one first value is left out. Each instance has one.",
        len(PRINTED) * one_left_out: "Only one first value is left out. Each instance has one.",
        float(sum(counted)): "That is the sum of all values. The values of one instance come one after the other: "
        "take their average, and add up over instances only.",
    }
    for number, hint in known.items():
        if math.isclose(value, number, rel_tol=CLOSE_ENOUGH):
            return hint
    return f"Not {value:,.0f}: for each instance, average all values but the first; then add up the four averages."


def _latency(batch: int, call: float = CALL, send: float = SEND_IMAGE, fixed: float = PER_BATCH) -> float:
    """Milliseconds from the call to the result."""
    return call + fixed + (PER_IMAGE + send) * batch


def _largest_batch(call: float = CALL, send: float = SEND_IMAGE, fixed: float = PER_BATCH) -> int:
    """The largest batch within the budget, when so much of each part is counted."""
    return math.floor((BUDGET - call - fixed) / (PER_IMAGE + send) + 1e-9)


def _single_call_rate() -> float:
    """Images a second when each call waits for the one before."""
    return 1e3 * _largest_batch() / _latency(_largest_batch())


def _batch_hint(value: object) -> str | None:
    wrong = whole_number_hint("batch", value)
    if wrong or not isinstance(value, int):
        return wrong
    largest = _largest_batch()
    if value == largest:
        return None
    known = {
        _largest_batch(call=0): f"{value} leaves out the {CALL:g} ms of the call, which the caller waits for, too.",
        _largest_batch(send=0): f"{value} leaves out sending. Images have to get to the IPU before it can compute.",
        _largest_batch(call=0, send=0): f"{value} counts the IPU's computing only, as a benchmark with synthetic data "
        "in a long loop does.",
        _largest_batch(fixed=0): f"{value} leaves out the {PER_BATCH:g} ms that a batch of any size takes.",
    }
    if value in known:
        return known[value]
    if value > largest:
        return f"A batch of {value} takes {_latency(value):.2f} ms from call to result: more than {BUDGET:g}."
    return f"{value} is within the budget ({_latency(value):.2f} ms), but not the largest such batch."


def _rate_hint(value: object) -> str | None:
    wrong = number_hint("rate", value)
    if wrong or not isinstance(value, (int, float)) or math.isclose(value, _single_call_rate(), rel_tol=CLOSE_ENOUGH):
        return wrong
    batch = _largest_batch()
    known = {
        1e3 * batch / BUDGET: f"The batch is right. That rate takes {BUDGET:g} ms for it, which is the budget: the "
        "next call can begin as soon as this one is done.",
        1e3 * batch / _latency(batch, call=0): "The batch is right. That is the rate of a long loop, whose one call "
        "hardly counts. Here each batch is a call of its own.",
        1e3 * batch / _latency(batch, call=0, send=0): "The batch is right. That is the rate of a long loop to which "
        "nothing is sent.",
        batch / _latency(batch): "The batch is right. That is images a millisecond.",
    }
    for number, hint in known.items():
        if math.isclose(value, number, rel_tol=CLOSE_ENOUGH):
            return hint
    return f"The batch is right. Not {value:,.0f}: divide the {batch} images by their latency, in seconds."


def _contradicting_hint(value: object) -> str | None:
    if not isinstance(value, (list, tuple, set, frozenset)):
        return f"contradicting is a list of line numbers, such as [1, 2]; you wrote {value!r}."
    strange = [line for line in value if isinstance(line, bool) or line not in LINES]
    if strange:
        return f"There is no line {strange[0]!r}: the table numbers its lines from 1 to {len(LINES)}."
    lines = set(value)
    if lines == UNDER_WRONG_HEADING:
        return None
    if lines & MODIFIED:
        return (
            "The Modified lines print --group-dim 16 below the heading Group Dim 16: these agree. Which heading says "
            "something else?"
        )
    if lines and lines < UNDER_WRONG_HEADING:
        return "That is one of them. The same heading has a second line: look at it, too."
    if lines & {1, 2, 3, 4}:
        return "The headings of lines 1 to 4 say nothing of groups, and the lines print none: no contradiction there."
    return "None? Compare the heading's Group Dim with the column --group-dim, line by line."


def _odd_line_hint(value: object) -> str | None:
    wrong = whole_number_hint("odd_line", value)
    if wrong or value == ODD_LINE:
        return wrong
    if value == 7:
        return (
            "The lines are right. Line 7 has the largest accumulation of its network, but only one replica: "
            "5 x 160 x 1 = 800 images, as most of them."
        )
    if value in (6, 8):
        return f"The lines are right. Line {value} has 4 replicas: 5 x 40 x 4 = 800 images, as most of them."
    if value in (1, 2):
        return "The lines are right. 16,384 images are many, but both lines of ResNet-50 have as many."
    return (
        "The lines are right. The global batch is batch size x accumulation x replicas: compare it within each network."
    )
