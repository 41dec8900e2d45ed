"""The exercises of the 8-bit I/O lesson: the most a stream can save, a range of the learner's own, and who gains."""

from __future__ import annotations

import torch
from torch import Tensor

from ipu_course.checks import check, number_hint, whole_number_hint

LESSON = "04"

IMAGES_PER_CALL = 64 * 8 * 4
BYTES_OF_AN_IMAGE = 3 * 64 * 64
SAVED_BYTES = IMAGES_PER_CALL * BYTES_OF_AN_IMAGE
LINK_BYTES_PER_SECOND = 3e9
CALL_BEFORE, CALL_AFTER = 1.88, 1 / 1.77  # published, seconds
SAVED_SECONDS = SAVED_BYTES / LINK_BYTES_PER_SECOND
SHARE = SAVED_SECONDS / (CALL_BEFORE - CALL_AFTER)
TOLERANCE = 0.02
# Two roundings to fp16, of numbers up to 2: in steps of 2 ** -10 there.
RANGE_TOLERANCE = 2.0**-9

GAINS = {"pictures": True, "words": False, "hidden": False}


def check_stream_bound(saved_bytes: object, share: object) -> None:
    """Exercise 1: bytes that uint8 saves in one call, and the largest share of the step that they explain."""
    check(
        LESSON,
        "Exercise 1",
        {"saved_bytes": saved_bytes, "share": share},
        lambda: _bytes_hint(saved_bytes) or _share_hint(share),
        f"{SAVED_BYTES:,} bytes take {1000 * SAVED_SECONDS:.1f} ms: less than one per cent of what the step saved.",
    )


def check_minus_one_to_one(to_range: object) -> None:
    """Exercise 2: a function from uint8 images to fp16 numbers, where 0 becomes -1 and 255 becomes 1."""
    check(
        LESSON,
        "Exercise 2",
        {"to_range": to_range},
        lambda: _range_hint(to_range),
        "Cast first, then compute: all 256 values are right.",
    )


def check_who_gains(pictures: object, words: object, hidden: object) -> None:
    """Exercise 3: which of three programs 8-bit I/O makes clearly faster."""
    answer = {"pictures": pictures, "words": words, "hidden": hidden}
    check(
        LESSON,
        "Exercise 3",
        answer,
        lambda: next(filter(None, (_gain_hint(name, value) for name, value in answer.items())), None),
        "8-bit I/O pays where host work or the stream limits, and where 256 values are enough.",
    )


def _bytes_hint(value: object) -> str | None:
    wrong = whole_number_hint("saved_bytes", value)
    if wrong or value == SAVED_BYTES:
        return wrong
    assert isinstance(value, int)
    known = {
        2 * SAVED_BYTES: "Those are the fp16 bytes of a call, not what is saved: the uint8 bytes still travel.",
        3 * SAVED_BYTES: "That compares uint8 with fp32; before this step, the images were fp16.",
        8 * SAVED_BYTES: "That counts bits. A byte has 8 of them.",
        BYTES_OF_AN_IMAGE: "That is one image. How many does one call take?",
        64 * BYTES_OF_AN_IMAGE: "That is one micro-batch. A call takes 8 x 4 of them.",
        512 * BYTES_OF_AN_IMAGE: "That is one weight update; with 4 device iterations, a call makes 4.",
        SAVED_BYTES // 3: "That leaves out the three colours: an image is 3 x 64 x 64 numbers.",
    }
    if value in known:
        return known[value]
    return (
        f"{value:,} is not it: images in a call (64 x 8 x 4), times numbers in an image (3 x 64 x 64), times the "
        "bytes that each number gets smaller."
    )


def _share_hint(value: object) -> str | None:
    wrong = number_hint("share", value)
    if wrong:
        return wrong
    assert isinstance(value, (int, float))
    if _near(value, SHARE):
        return None
    begin = "The bytes are right. "
    if _near(value, 100 * SHARE):
        return begin + "A share lies between 0 and 1; this is per cent."
    if _near(value, SAVED_SECONDS):
        return begin + "These are the seconds that the stream saves. Which part of 1.88 - 1 / 1.77 is that?"
    if _near(value, 1000 * SAVED_SECONDS):
        return begin + "These are the milliseconds that the stream saves; a share compares them with the step."
    if _near(value, SAVED_SECONDS / CALL_BEFORE):
        return begin + "You divide by the whole call before the step. The question is about what the step saved."
    if _near(value, SAVED_SECONDS / CALL_AFTER):
        return begin + "You divide by the call after the step. The question is about what the step saved."
    if _near(value, SAVED_SECONDS / (CALL_BEFORE - 1.77)):
        return begin + "1.77 are calls a second, so one call takes 1 / 1.77 s."
    return begin + "Seconds that the stream saves (bytes / 3e9), divided by the seconds that a call got shorter."


def _near(value: float, wanted: float) -> bool:
    return abs(value - wanted) <= TOLERANCE * wanted


def every_pixel() -> Tensor:
    """Images [2, 3, 8, 16] uint8 that hold every value 0 to 255 in each colour."""
    values = torch.arange(256, dtype=torch.uint8).view(2, 1, 8, 16)
    return values.expand(2, 3, 8, 16).clone()


def _range_hint(function: object) -> str | None:
    if not callable(function):
        return f"to_range is a function of the images; you wrote {function!r}."
    pixels = every_pixel()
    result = function(pixels.clone())
    if not isinstance(result, Tensor):
        return f"to_range gives a tensor; yours gives {type(result).__name__}."
    if result.shape != pixels.shape:
        return f"The shape of the images is to stay {list(pixels.shape)}; yours gives {list(result.shape)}."
    if not result.is_floating_point():
        return f"The result is still {result.dtype}: whole numbers cannot say 0.5. Cast to torch.float16 first."
    wanted = pixels.double() / 127.5 - 1
    hint = _values_hint(result.double(), wanted)
    if hint is None and result.dtype != torch.float16:
        return f"The numbers are right, but {result.dtype}: a network in half precision takes torch.float16."
    return hint


def _values_hint(result: Tensor, wanted: Tensor) -> str | None:
    if not bool(result.isfinite().all()):
        return "Some results are infinite or no numbers: do not divide before casting, nor by 0."
    if float((result - wanted).abs().max()) <= RANGE_TOLERANCE:
        return None
    # Along the 256 values, what is right always rises.
    rising = result[:, 0].flatten().diff()
    if bool((rising < 0).any()):
        return (
            "The results jump back somewhere in the middle: a calculation on 8-bit numbers has gone past its end "
            "and begun again. Cast before you subtract."
        )
    if result.unique().numel() < 200:
        return "Different pixels come out equal: a division of whole numbers has cut them. Cast before you divide."
    low, high = float(result.flatten()[0]), float(result.flatten()[-1])
    if abs(low) <= RANGE_TOLERANCE and abs(high - 1) <= RANGE_TOLERANCE:
        return "This goes from 0 to 1. Stretch it to twice the width, and move it down by 1."
    if abs(low + 1) <= RANGE_TOLERANCE and high < 1 - RANGE_TOLERANCE:
        return f"255 becomes {high:.4g}, and not 1: the middle of 0 and 255 is 127.5, not 128."
    return f"The ends are not right: 0 becomes {low:.4g} instead of -1, and 255 becomes {high:.4g} instead of 1."


def _gain_hint(name: str, value: object) -> str | None:
    if not isinstance(value, bool):
        return f"{name} is True or False; you wrote {value!r}."
    if value == GAINS[name]:
        return None
    return {
        "pictures": (
            "pictures: 0.7 of 0.9 ms an image are conversion and normalisation, and nothing hides them. Sending "
            "bytes leaves them to the IPUs."
        ),
        "words": (
            "words: uint8 ends at 255, and number 300 would become 44. Numbers of words need more bits, and are "
            "not normalised: there is no host work to save."
        ),
        "hidden": (
            "hidden: loading already runs beside the IPUs and ends before them, and the stream is one per cent of "
            "the call. Less of either changes next to nothing."
        ),
    }[name]
