"""The exercises of lesson 10: counting over replicas and instances, two runs for a third, what limits a program."""

from __future__ import annotations

import math
from typing import Mapping

from ipu_course.checks import check, number_hint, whole_number_hint

LESSON = "10"

# Exercise 1: a submission's micro-batch and accumulation, on 64 replicas in 32 instances, 4 device iterations.
MICRO_BATCH, ACCUMULATION, ITERATIONS = 20, 10, 4
REPLICAS, INSTANCES, IMAGES = 64, 32, 1_281_167
LOCAL = REPLICAS // INSTANCES
GLOBAL_BATCH = MICRO_BATCH * ACCUMULATION * REPLICAS
ROWS = MICRO_BATCH * ACCUMULATION * ITERATIONS * LOCAL
CALLS = IMAGES // (ROWS * INSTANCES)

# Exercise 2: two runs as (micro-batches of an update, milliseconds of an update).
ONE_RUN, OTHER_RUN = (4, 52.0), (12, 132.0)
M = (OTHER_RUN[1] - ONE_RUN[1]) / (OTHER_RUN[0] - ONE_RUN[0])
U = ONE_RUN[1] - ONE_RUN[0] * M
MOST = 0.1

# Exercise 3: what is to be changed in each program.
LOADERS, BYTES, ACCUMULATE, PARTS, NOTHING = "loaders", "8-bit input", "accumulation", "state in parts", "nothing"
CHANGES = {"A": LOADERS, "B": BYTES, "C": ACCUMULATE, "D": PARTS, "E": NOTHING}
ANSWERS = (LOADERS, BYTES, ACCUMULATE, PARTS, NOTHING)
REASONS = {
    "A": "Program A: loading takes three times as long as the device, so the IPUs wait for images.",
    "B": "Program B: the device is busy with streams, more than half of its time: fewer bytes over the link help.",
    "C": "Program C: the all-reduce comes after every 2 micro-batches. Nothing else takes long.",
    "D": "Program D: the copies of the optimiser's state from and to the memory off the chip take a third of the time.",
    "E": "Program E: no share is large, and loading is hidden behind the device.",
}


def check_counts(global_batch: object, rows_per_item: object, calls: object) -> None:
    """Exercise 1: samples of a weight update, rows that one loader gives for a call, calls of an epoch."""
    check(
        LESSON,
        "Exercise 1",
        {"global_batch": global_batch, "rows_per_item": rows_per_item, "calls": calls},
        lambda: _global_hint(global_batch) or _rows_hint(rows_per_item) or _calls_hint(calls),
        "All replicas make the global batch; a loader feeds its own two; and all 32 loaders share the epoch.",
    )


def check_third_run(milliseconds: object, accumulation: object) -> None:
    """Exercise 2: an update of one micro-batch, and the smallest accumulation with u at most a tenth of the time."""
    check(
        LESSON,
        "Exercise 2",
        {"milliseconds": milliseconds, "accumulation": accumulation},
        lambda: _milliseconds_hint(milliseconds) or _accumulation_hint(accumulation),
        "m = 10 ms and u = 12 ms: 22 ms, and 12 / (11 x 10 + 12) is just below a tenth.",
    )


def check_changes(changes: object) -> None:
    """Exercise 3: for each of five programs, what to change first."""
    values = list(changes.values()) if isinstance(changes, dict) else [changes]
    untouched = bool(values) and all(value is ... for value in values)
    check(
        LESSON,
        "Exercise 3",
        {"changes": ... if untouched else changes},
        lambda: _changes_hint(changes),
        "The largest time tells what to change, and a time that is hidden tells nothing.",
    )


def _global_hint(value: object) -> str | None:
    wrong = whole_number_hint("global_batch", value)
    if wrong or value == GLOBAL_BATCH:
        return wrong
    known = {
        GLOBAL_BATCH * ITERATIONS: "global_batch: device iterations repeat the whole update, so each of them is a "
        "weight update of its own. They make a call larger, not the batch.",
        GLOBAL_BATCH // INSTANCES: "global_batch: this counts the replicas of one instance. The gradients of all "
        "replicas are added up, whichever process they belong to.",
        GLOBAL_BATCH // ACCUMULATION: "global_batch: gradients are accumulated before they are added up over replicas, "
        "so the accumulation counts.",
        GLOBAL_BATCH * INSTANCES: "global_batch: 64 are the replicas of all instances together.",
        MICRO_BATCH * ACCUMULATION: "global_batch: this is what one replica sees before an update.",
    }
    if isinstance(value, int) and value in known:
        return known[value]
    return f"global_batch: {value} is not micro-batch x accumulation x all replicas."


def _rows_hint(value: object) -> str | None:
    wrong = whole_number_hint("rows_per_item", value)
    if wrong or value == ROWS:
        return wrong
    known = {
        ROWS * INSTANCES: "rows_per_item: these are the rows of all instances. Each has a loader of its own, "
        "which feeds its own replicas only.",
        ROWS // ITERATIONS: "rows_per_item: a call runs 4 device iterations, and the loader gives the images of all.",
        ROWS // LOCAL: "rows_per_item: these are the rows of one replica; an instance has two.",
    }
    if isinstance(value, int) and value in known:
        return known[value]
    return f"rows_per_item: {value} is not micro-batch x accumulation x device iterations x replicas of one instance."


def _calls_hint(value: object) -> str | None:
    wrong = whole_number_hint("calls", value)
    if wrong or value == CALLS:
        return wrong
    if value == IMAGES // ROWS:
        return "calls: this is the whole data set for one instance. Each of the 32 loads its part only."
    if value in (IMAGES // GLOBAL_BATCH, CALLS * ITERATIONS):
        return "calls: these are weight updates. A call makes as many of them as it has device iterations."
    if value == math.ceil(IMAGES / (ROWS * INSTANCES)):
        return "calls: the last one would not be full, and the loader drops it: drop_last=True is PopTorch's default."
    return f"calls: {value} times the rows of all instances is not an epoch of {IMAGES:,} images."


def _milliseconds_hint(value: object) -> str | None:
    wrong = number_hint("milliseconds", value)
    if wrong or not isinstance(value, (int, float)) or math.isclose(value, M + U, rel_tol=0.01):
        return wrong
    known = (
        (ONE_RUN[1] / ONE_RUN[0], "this shares out u with the micro-batches. It does not shrink with them."),
        (OTHER_RUN[1] / OTHER_RUN[0], "this shares out u with the micro-batches. It does not shrink with them."),
        (M, "this is m alone: the part that every update takes once, u, is missing."),
        (U, "this is u alone; one micro-batch comes to it."),
        (M / 1000 + U / 1000, "these are seconds."),
    )
    for number, words in known:
        if math.isclose(value, number, rel_tol=0.01):
            return f"milliseconds: {words}"
    return (
        f"milliseconds: {value:g} is not on the line through both runs: 8 micro-batches more take 80 ms more. What is "
        "left of 52 ms without its 4 micro-batches?"
    )


def _accumulation_hint(value: object) -> str | None:
    wrong = whole_number_hint("accumulation", value)
    if wrong or not isinstance(value, int):
        return wrong
    smallest = math.ceil((U / MOST - U) / M)
    if value == smallest:
        return None
    reached = U / (value * M + U)
    if value == math.ceil(U / MOST / M):
        return (
            f"accumulation: {value} makes the micro-batches ten times u. u belongs to the whole time, too: its share "
            f"is only {reached:.1%}."
        )
    if reached > MOST:
        return f"accumulation: with {value} micro-batches, u is {reached:.1%} of the update: more than a tenth."
    return f"accumulation: {value} is enough ({reached:.1%}), but a smaller one is, too: solve u / (G m + u) = 0.1."


def _changes_hint(changes: object) -> str | None:
    if not isinstance(changes, Mapping):
        return f"changes is a dict such as {{'A': '{NOTHING}', ...}}; you wrote {changes!r}."
    missing = [name for name in CHANGES if changes.get(name, ...) is ...]
    if missing:
        return f"still to fill in: {', '.join(missing)}."
    unknown = [str(changes[name]) for name in CHANGES if changes[name] not in ANSWERS]
    if unknown:
        return f"{unknown[0]!r} is none of the changes offered: {', '.join(ANSWERS)}."
    wrong = [name for name, change in CHANGES.items() if changes[name] != change]
    if not wrong:
        return None
    first = wrong[0]
    if first == "E":
        return f"{REASONS['E']} A loader that is faster still would change nothing, and neither would the rest."
    if changes[first] == NOTHING:
        return f"{REASONS[first]} There is something to gain."
    return REASONS[first]
