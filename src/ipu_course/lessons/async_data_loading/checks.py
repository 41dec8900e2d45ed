"""The exercises of the data loading lesson: keep what a loader lends, rates in closed form, a loader's arguments."""

from __future__ import annotations

from typing import Any, Iterator

import torch
from torch import Tensor

import poptorch
from ipu_course.checks import check, number_hint, whole_number_hint

LESSON = "05"

IMAGES_PER_CALL = 1000
LOAD_SECONDS, REST_SECONDS = 0.5, 0.18  # of one call
SYNC_RATE = IMAGES_PER_CALL / (LOAD_SECONDS + REST_SECONDS)
ASYNC_RATE = IMAGES_PER_CALL / LOAD_SECONDS
FEWEST_WORKERS = 3  # 0.5 / 3 = 0.167 s is below 0.18 s, 0.5 / 2 is not
TOLERANCE = 0.01

BUFFER_SIZE = 8
KNOWN_OPTIONS = ("buffer_size", "early_preload", "load_indefinitely", "miss_sleep_time_in_ms", "sharing_strategy")
ASYNCHRONOUS = (poptorch.DataLoaderMode.Async, poptorch.DataLoaderMode.AsyncRebatched)


def check_keep(keep: object) -> None:
    """Exercise 1: a function that keeps what an asynchronous loader hands out."""
    check(
        LESSON,
        "Exercise 1",
        {"keep": keep},
        lambda: _keep_hint(keep),
        "A copy stays, whatever the loader writes into its buffer.",
    )


def check_rates(sync_rate: object, async_rate: object, workers: object) -> None:
    """Exercise 2: images a second with Sync and Async, and the fewest workers that end the wait for data."""
    check(
        LESSON,
        "Exercise 2",
        {"sync_rate": sync_rate, "async_rate": async_rate, "workers": workers},
        lambda: _sync_hint(sync_rate) or _async_hint(async_rate) or _workers_hint(workers),
        "0.5 + 0.18 s a call, then 0.5 s, and with three workers the calls' own 0.18 s.",
    )


def check_arguments(arguments: object) -> None:
    """Exercise 3: an asynchronous loader that holds 8 calls' data, fills them early, and stops after an epoch."""
    check(
        LESSON,
        "Exercise 3",
        {"arguments": arguments},
        lambda: _arguments_hint(arguments),
        "Eight slots, filled at once, and no work for an epoch that nobody asks for.",
    )


def lent_labels(items: int = 4) -> Iterator[Tensor]:
    """Labels [3] of ``items`` calls, all in one buffer: what the loader's next item overwrites."""
    slot = torch.zeros(3, dtype=torch.int64)
    for number in range(items):
        slot.copy_(torch.arange(3) + 3 * number)
        yield slot


def _keep_hint(keep: Any) -> str | None:
    if not callable(keep):
        return f"keep is a function of one tensor; you wrote {keep!r}."
    lent = torch.arange(3)
    kept = keep(lent)
    if kept is None:
        return "Your function returns nothing: give back what is to be kept."
    all_kept = [keep(labels) for labels in lent_labels()]
    values = [_numbers(each) for each in all_kept]
    if values == [[float(3 * number + place) for place in range(3)] for number in range(4)]:
        return None
    if kept is lent:
        return (
            "This gives back the very tensor it got, and the next item overwrites it. (to() and contiguous() copy "
            "only when they have something to change.)"
        )
    if isinstance(kept, Tensor) and kept.data_ptr() == lent.data_ptr():
        return "This is a new tensor, but a view: it looks at the same memory, which the next item overwrites."
    if hasattr(kept, "__array_interface__") and kept.__array_interface__["data"][0] == lent.data_ptr():
        return "numpy() shares the tensor's memory, which the next item overwrites: copy the array."
    return f"Of the labels [0, 1, 2] this keeps {_short(kept)}: keep all of them, unchanged."


def _numbers(kept: object) -> list[float] | None:
    try:
        return [float(number) for number in kept]  # type: ignore[attr-defined]  # a tensor, an array or a list
    except TypeError:
        return None


def _short(kept: object) -> str:
    return repr(kept)[:60]


def _near(value: float, wanted: float) -> bool:
    return abs(value - wanted) <= TOLERANCE * wanted


def _sync_hint(value: object) -> str | None:
    wrong = number_hint("sync_rate", value)
    if wrong:
        return wrong
    assert isinstance(value, (int, float))
    if _near(value, SYNC_RATE):
        return None
    if _near(value, SYNC_RATE / IMAGES_PER_CALL):
        return "sync_rate: these are calls a second. A call takes 1,000 images."
    if _near(value, ASYNC_RATE):
        return "sync_rate: this counts the loading only. With Sync the call waits for it, so the times add up."
    if _near(value, IMAGES_PER_CALL / REST_SECONDS):
        return "sync_rate: this counts the call only. With Sync nothing is loaded meanwhile, so the times add up."
    if _near(value, ASYNC_RATE + IMAGES_PER_CALL / REST_SECONDS):
        return "sync_rate: rates of things done one after another do not add up, their times do."
    return "sync_rate: 1,000 images in the time of loading (1,000 x 0.5 ms) plus the time of the call (180 ms)."


def _async_hint(value: object) -> str | None:
    wrong = number_hint("async_rate", value)
    if wrong:
        return wrong
    assert isinstance(value, (int, float))
    if _near(value, ASYNC_RATE):
        return None
    begin = "sync_rate is right. async_rate: "
    if _near(value, IMAGES_PER_CALL / REST_SECONDS):
        return begin + "the call is fast, but its data are not there yet. The slower of the two sets the pace."
    if _near(value, ASYNC_RATE / IMAGES_PER_CALL):
        return begin + "these are calls a second, not images."
    if _near(value, SYNC_RATE):
        return begin + "loading now runs beside the call: the times no longer add up."
    if _near(value, ASYNC_RATE + IMAGES_PER_CALL / REST_SECONDS):
        return begin + "two things at the same time are as fast as the slower one, not as both together."
    return begin + "1,000 images in the longer of 500 ms (loading) and 180 ms (the call)."


def _workers_hint(value: object) -> str | None:
    wrong = whole_number_hint("workers", value)
    if wrong or value == FEWEST_WORKERS:
        return wrong
    assert isinstance(value, int)
    share = 1000 * LOAD_SECONDS / value
    if value < FEWEST_WORKERS:
        return f"The rates are right. With {value} worker(s) a call's data still take {share:.0f} ms, more than 180 ms."
    return f"The rates are right. {value} workers are enough, but fewer are, too: where does 500 / workers pass 180?"


def _arguments_hint(arguments: Any) -> str | None:
    if not isinstance(arguments, dict):
        return f"arguments is a dict, from the names of keyword arguments to their values; you wrote {arguments!r}."
    mode = arguments.get("mode")
    if mode not in ASYNCHRONOUS:
        return "mode is not asynchronous, so nothing is loaded ahead: use poptorch.DataLoaderMode.Async."
    outside = sorted(set(arguments) & set(KNOWN_OPTIONS))
    if outside:
        return f"{outside[0]} is an option of the loader's process: it goes into the dict async_options."
    options = arguments.get("async_options")
    if not isinstance(options, dict):
        return "async_options is missing: a dict of options for the loader's process."
    unknown = sorted(set(options) - set(KNOWN_OPTIONS))
    if unknown:
        return f"async_options has no {unknown[0]!r}; it has {', '.join(KNOWN_OPTIONS)}."
    return _options_hint(options)


def _options_hint(options: dict[str, Any]) -> str | None:
    size = options.get("buffer_size", 3)
    if size != BUFFER_SIZE:
        note = " (the slot in use counts, too)" if size in (BUFFER_SIZE - 1, BUFFER_SIZE + 1) else ""
        return f"The buffer has {size} slots, and 8 are asked for{note}."
    if options.get("early_preload", False) is not True:
        return "Without early_preload only the first item is there when training begins: set it to True."
    if options.get("load_indefinitely", True) is not False:
        return "load_indefinitely starts the next epoch unasked, and is on by default: set it to False."
    return None
