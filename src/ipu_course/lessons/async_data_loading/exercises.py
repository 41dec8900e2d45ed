"""The exercises of lesson 05: three traces, what a loader lends, the times of calls, and a buffer for uneven loads."""

from __future__ import annotations

import math
import random
from typing import Any, Iterator, Mapping

import torch
from torch import Tensor

from ipu_course.call_parts import CallParts
from ipu_course.exercises import Exercise, Number, Numbers
from ipu_course.lessons.async_data_loading.explorer import CONTROLS, UNEVEN, waiting
from ipu_course.lessons.async_data_loading.loading import Loading, timeline
from ipu_course.lessons.async_data_loading.traces import bottleneck

LIMITS = {
    "loading": "Its loading has grey gaps: it waits for a slot, which becomes free when a call ends.",
    "calls": "The IPUs' part of each call is longer than the host's part, or the call waits for its data.",
    "IPUs": "The IPUs have grey gaps between two pieces of work. Which other row fills most of that time?",
}
UNEVEN_LOAD_MS, UNEVEN_CALL_MS = 150, 200


def traces_hint(a: object, b: object, c: object, using: Mapping[str, CallParts]) -> str | None:
    """Return a hint on the first trace whose bottleneck is named wrongly; ``using`` are the traces' parts."""
    for name, answer in zip("ABC", (a, b, c)):
        if answer not in LIMITS:
            return f'Trace {name}: answer "loading", "calls" or "IPUs"; you wrote {answer!r}.'
        if answer != bottleneck(using[name]):
            return f"Trace {name} is not limited by {answer}. {LIMITS[str(answer)]}"
    return None


def keep_hint(keep: Any) -> str | None:
    """Return what is wrong with a function that is to keep what an asynchronous loader lends."""
    if not callable(keep):
        return f"keep is a function of one tensor; you wrote {keep!r}."
    lent = torch.arange(3)
    kept = keep(lent)
    if kept is None:
        return "Your function returns nothing: return what you want to keep."
    values = [_numbers(each) for each in [keep(labels) for labels in lent_labels()]]
    if values == [[float(3 * number + place) for place in range(3)] for number in range(4)]:
        return None
    if kept is lent:
        return (
            "This returns the same tensor that it was given, and the next item overwrites it. (to() and contiguous() "
            "copy only when they have something to change.)"
        )
    if isinstance(kept, Tensor) and kept.data_ptr() == lent.data_ptr():
        return "This is a new tensor, but it is a view of the same memory, which the next item overwrites."
    if hasattr(kept, "__array_interface__") and kept.__array_interface__["data"][0] == lent.data_ptr():
        return "numpy() shares the tensor's memory, which the next item overwrites: copy the array."
    return f"Of the labels [0, 1, 2] this keeps {repr(kept)[:60]}: keep all of them, unchanged."


def lent_labels(items: int = 4) -> Iterator[Tensor]:
    """Yield labels [3] of ``items`` calls, all in one buffer: the next item overwrites the one before."""
    slot = torch.zeros(3, dtype=torch.int64)
    for number in range(items):
        slot.copy_(torch.arange(3) + 3 * number)
        yield slot


def _numbers(kept: Any) -> list[float] | None:
    try:
        return [float(number) for number in kept]
    except TypeError:
        return None


def call_ends_hint(call_ends: Any) -> str | None:
    """Return what is wrong with a function of loading times, the time of a call and slots to the calls' ends."""
    if not callable(call_ends):
        return f"call_ends is a function of loads, call and slots; you wrote {call_ends!r}."
    draw = random.Random(5)
    cases = [
        ([1.0, 1.0, 1.0, 1.0, 6.0], 2.0, 2),
        ([3.0, 1.0, 1.0, 1.0], 2.0, 1),
        ([3.0, 3.0, 3.0], 1.0, 2),
        ([1.0] * 5, 3.0, 2),
        ([1.0, 1.0, 6.0], 2.0, 3),
    ]
    cases += [([draw.choice((1.0, 2.0, 9.0)) for _ in range(12)], 3.0, slots) for slots in (1, 2, 3, 5)]
    return next(filter(None, (_ends_hint(call_ends, *case) for case in cases)), None)


def _ends_hint(call_ends: Any, loads: list[float], call: float, slots: int) -> str | None:
    answer = call_ends(list(loads), call, slots)
    ends = _numbers(answer) if answer is not None else None
    if ends is None or len(ends) != len(loads):
        return f"call_ends returns one number for each load; for loads {loads} yours returns {answer!r}."
    wanted = _ends(loads, call, slots)
    if _same(ends, wanted):
        return None
    shown = f"For loads {loads}, a call of {call:g} and {slots} slot(s), the calls end at {wanted[:5]}"
    shown += f"; yours end at {[round(end, 3) for end in ends[:5]]}. "
    if _same(ends, [end - call for end in wanted]):
        return shown + "Those are the starts of the calls."
    if _same(ends, _ends(loads, call, len(loads))):
        return shown + "Your loader never waits for a free slot: load n needs the slot that call n - slots releases."
    if _same(ends, _ends(loads, call, slots + 1)):
        return shown + "Your ring has one slot too many, because the slot in use counts, too."
    if _same(ends, _waiting_for_the_last(loads, call, slots)):
        return (
            shown
            + "In Python ended[-1] is the last element of a list. The first loads, one for each slot, do not wait."
        )
    if slots > 1 and _same(ends, _ends(loads, call, 1)):
        return shown + "Your loader does not load ahead: with more slots it loads while calls run."
    return shown + "A call starts when its data are there and the call before it has ended."


def _ends(loads: list[float], call: float, slots: int) -> list[float]:
    return [event.end for event in timeline(loads, call, Loading(True, 0, slots)).calls]


def _waiting_for_the_last(loads: list[float], call: float, slots: int) -> list[float]:
    """Return the ends if ``ended[number - slots]`` were read with negative places, too, as soon as they exist."""
    loaded: list[float] = []
    ended: list[float] = []
    for number, load in enumerate(loads):
        place = number - slots
        slot_free = ended[place] if -len(ended) <= place < len(ended) else 0.0
        loaded.append(max(slot_free, loaded[-1] if loaded else 0.0) + load)
        ended.append(max(loaded[-1], ended[-1] if ended else 0.0) + call)
    return ended


def _same(one: list[float], other: list[float]) -> bool:
    return all(math.isclose(a, b, abs_tol=1e-6) for a, b in zip(one, other))


def _smallest_buffer() -> int:
    """Return the smallest buffer of the slider with which the IPUs do not wait for the uneven loads."""
    buffers = CONTROLS["buffer"].values
    return next(
        int(slots) for slots in buffers if not round(100 * waiting(UNEVEN_LOAD_MS, UNEVEN_CALL_MS, 0, slots, True))
    )


def _wait_percent() -> int:
    return round(100 * waiting(UNEVEN_LOAD_MS, UNEVEN_CALL_MS, 0, 3, True))


TRACES = Exercise(
    ("trace_a", "trace_b", "trace_c"),
    traces_hint,
    "In A the loading never waits. In B and C the calls never wait, so the longer part of a call is the bottleneck.",
)
KEEP = Exercise(("keep",), keep_hint, "A copy keeps its values, whatever the loader writes into its slots later.")
CALL_ENDS = Exercise(
    ("call_ends",), call_ends_hint, "Your recurrence agrees with the course's simulation for even and uneven loads."
)
BUFFER = Numbers(
    Number(
        "wait_percent",
        _wait_percent(),
        tolerance=0.6,
        wrong={0: "Tick the box for uneven loads, and keep 3 slots and no workers."},
        otherwise="Set 150 ms, 200 ms, no workers, 3 slots and uneven loads, and read how long the IPUs wait.",
    ),
    Number(
        "slots",
        _smallest_buffer(),
        wrong={
            8: "wait_percent is right. 8 slots are enough, but fewer slots are enough, too.",
            3: "wait_percent is right. With 3 slots the IPUs still wait.",
        },
        otherwise="wait_percent is right. Move buffer_size until the IPUs no longer wait: which is the smallest?",
    ),
    praise=f"While the long load takes its {max(UNEVEN) * UNEVEN_LOAD_MS:g} ms, the calls use the data in the buffer.",
)
