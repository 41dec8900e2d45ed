"""The exercises of lesson 04: a byte path, four suspects, a bound on what the link saves, and a host's speed."""

from __future__ import annotations

from typing import Any, Mapping

from ipu_course import ladder
from ipu_course.exercises import Exercise, Number, Numbers, as_number
from ipu_course.lessons.eight_bit_io.byte_path import byte_path_hint
from ipu_course.lessons.eight_bit_io.explorer import HOST_MS, LIMITED_BY_LOADING, images_per_second, limited_by

NUMBERS_IN_AN_IMAGE = 3 * 64 * 64
MICRO_BATCH, ACCUMULATION, ITERATIONS = 64, 8, 4
SAVED_BYTES = MICRO_BATCH * ACCUMULATION * ITERATIONS * NUMBERS_IN_AN_IMAGE  # one byte for each number
LINK_BYTES_PER_SECOND = 3e9
# Seconds of a call, published. The text of the lesson gives both as the workshop printed them.
CALL_BEFORE = ladder.published("device iterations 4").seconds_per_call or 0.0
CALL_AFTER = ladder.published("8-bit I/O").seconds_per_call or 0.0
SAVED_SECONDS = CALL_BEFORE - CALL_AFTER
STREAM_SECONDS = SAVED_BYTES / LINK_BYTES_PER_SECOND
SHARE = STREAM_SECONDS / SAVED_SECONDS

INNOCENT = "A"
SUSPECTS = ("A", "B", "C", "D")
SUSPECT_HINTS = {
    "B": "B subtracts in uint8, which has no numbers below 0. What does 0 - 124 become there?",
    "C": "C uses //, which drops the fraction. Which results are left for pixels from 0 to 255?",
    "D": "D casts labels from 0 to 999, and uint8 ends at 255.",
}
DIVISOR = 255 * 0.229  # of lines A and B
BLACK = (0 - 124) % 256 / DIVISOR
VALUES = len({pixel // 255 for pixel in range(256)})

GAIN_TOLERANCE = 0.2  # percentage points: rates are read from a table without decimals


def innocent_hint(innocent: object) -> str | None:
    """Return a hint unless ``innocent`` is the letter of the one line without a bug."""
    letter = innocent.strip().upper() if isinstance(innocent, str) else ""
    if letter not in SUSPECTS:
        return f'innocent is one of the letters "A", "B", "C" and "D"; you wrote {innocent!r}.'
    return None if letter == INNOCENT else f"innocent is not {letter}. {SUSPECT_HINTS[letter]}"


def suspects_hint(innocent: object, black: object, values: object) -> str | None:
    """Return a hint on the first answer about the four lines that is wrong."""
    return innocent_hint(innocent) or BUGS.find_hint(black, values)


def host_speed_hint(gain_percent: object, host_ms: object, using: Mapping[str, Any]) -> str | None:
    """Return a hint on uint8's gain with a host that costs nothing, and on the slowest host that does not limit."""
    gain = as_number(gain_percent)
    if gain is None:
        return f"gain_percent is a number; you wrote {gain_percent!r}."
    return _gain_hint(gain, using) or _host_ms_hint(host_ms, using)


def gain_percent(programs: Mapping[str, Any], uint8_ms: float, fp16_ms: float) -> float:
    """Return how much higher the modelled rate is with uint8 than with fp16 images, in per cent."""
    return 100 * (images_per_second(programs["uint8"], uint8_ms) / images_per_second(programs["fp16"], fp16_ms) - 1)


def slowest_free_host(programs: Mapping[str, Any]) -> float:
    """Return the longest host time of the slider, in milliseconds per image, with which loading is no bottleneck."""
    return max(ms for ms in HOST_MS if limited_by(programs["uint8"], ms) != LIMITED_BY_LOADING)


def _gain_hint(gain: float, programs: Mapping[str, Any]) -> str | None:
    wanted = gain_percent(programs, 0.0, 0.0)
    if abs(gain - wanted) <= GAIN_TOLERANCE:
        return None
    if abs(gain - (wanted + 100)) <= GAIN_TOLERANCE:
        return "That is uint8's rate as a percentage of fp16's. By what percentage is it higher?"
    if abs(gain - wanted / 100) <= GAIN_TOLERANCE / 100 or abs(gain - 1 - wanted / 100) <= GAIN_TOLERANCE / 100:
        return "gain_percent is a percentage: write 5 for a rate that is 1.05 times as high."
    if any(abs(gain - gain_percent(programs, ms, ms)) <= GAIN_TOLERANCE for ms in HOST_MS[1:]):
        return "That is the gain with a host that needs some time for each image. Move the host's slider to 0."
    fitted = ladder.published_ladder().host
    times = 1000 * fitted.seconds_per_eight_bit_image, 1000 * fitted.seconds_per_image
    if abs(gain - gain_percent(programs, *times)) <= 1:
        return "You changed the host's time together with the type of the images. Set it to 0 ms for both types."
    return "Set the host to 0 ms per image, and read the images per second with uint8 and with fp16."


def _host_ms_hint(host_ms: object, programs: Mapping[str, Any]) -> str | None:
    value = as_number(host_ms)
    begin = "gain_percent is right. "
    if value is None:
        return begin + f"host_ms is a number of milliseconds; you wrote {host_ms!r}."
    wanted = slowest_free_host(programs)
    if abs(value - wanted) < 1e-9:
        return None
    if value not in HOST_MS:
        return begin + f"host_ms is one of the slider's settings: {', '.join(f'{ms:g}' for ms in HOST_MS)}."
    if value < wanted:
        return begin + f"With {value:g} ms loading is not the bottleneck, but a slower host is fast enough, too."
    return begin + f"With {value:g} ms, uint8 and Sync, the table still says that the host's loader is the bottleneck."


BYTE_PATH = Exercise(
    ("to_bytes", "Normalise"),
    byte_path_hint,
    "The device computes what the host computed, within fp16's precision, and each number takes one byte on the link.",
)
BUGS = Numbers(
    Number(
        "black",
        BLACK,
        tolerance=0.01,  # fp16 rounds the divisor and the result
        wrong={
            -124 / DIVISOR: "innocent is right. That is what line A makes of 0. B subtracts before it casts.",
            132: "innocent is right. 0 - 124 is 132 in uint8: now divide.",
            -124: "innocent is right. uint8 has no numbers below 0, so continue counting down from 255. Then divide.",
            131 / DIVISOR: "innocent is right. One below 0 is 255, so 124 below 0 is 256 - 124.",
            131: "innocent is right. One below 0 is 255, so 124 below 0 is 256 - 124. Then divide.",
        },
        otherwise="innocent is right. What is 0 - 124 in uint8? Cast the result and divide it by 255 * 0.229.",
    ),
    Number(
        "values",
        VALUES,
        wrong={
            1: "black is right. Line C keeps 0 apart from one other pixel value: which one is 1 after // 255?",
            256: "black is right. // gives whole numbers: what does it make of 254?",
            255: "black is right. // gives whole numbers: what does it make of 254?",
        },
        otherwise="black is right. Calculate x // 255 for 0, 100, 254 and 255.",
    ),
    praise="Cast the images first, calculate afterwards, and do not cast the labels.",
)
HUNT = Exercise(("innocent", "black", "values"), suspects_hint, BUGS.praise)
BOUND = Numbers(
    Number(
        "saved_bytes",
        SAVED_BYTES,
        wrong={
            2 * SAVED_BYTES: "Those are all the fp16 bytes of a call, but the uint8 bytes still travel.",
            3 * SAVED_BYTES: "That compares uint8 with fp32; before this step, the images were fp16.",
            8 * SAVED_BYTES: "That counts bits. A byte has 8 of them.",
            NUMBERS_IN_AN_IMAGE: "That is one image. How many does one call take?",
            MICRO_BATCH * NUMBERS_IN_AN_IMAGE: "That is one micro-batch. A call takes 8 x 4 of them.",
            MICRO_BATCH * ACCUMULATION * NUMBERS_IN_AN_IMAGE: (
                "That is one weight update; with 4 device iterations, a call makes 4 of them."
            ),
            SAVED_BYTES / 3: "That leaves out the three colours: an image is 3 x 64 x 64 numbers.",
            SAVED_BYTES / 1e6: "That is in megabytes: saved_bytes counts bytes.",
        },
        otherwise=(
            "Multiply the images in a call (64 x 8 x 4) by the numbers in an image (3 x 64 x 64) and by the number "
            "of bytes that each number saves."
        ),
    ),
    Number(
        "share",
        SHARE,
        tolerance=0.02 * SHARE,
        wrong={
            100 * SHARE: "saved_bytes is right. A share is between 0 and 1; this is the percentage.",
            STREAM_SECONDS: (
                "saved_bytes is right. These are the seconds that the stream saves. Which part of 1.88 - 1 / 1.77 is "
                "that?"
            ),
            1000 * STREAM_SECONDS: (
                "saved_bytes is right. These are the milliseconds that the stream saves; divide by what the call saves."
            ),
            STREAM_SECONDS / CALL_BEFORE: (
                "saved_bytes is right. You divide by the whole call before the step: divide by what the step saved."
            ),
            STREAM_SECONDS / CALL_AFTER: (
                "saved_bytes is right. You divide by the call after the step: divide by what the step saved."
            ),
            STREAM_SECONDS / (CALL_BEFORE - 1.77): (
                "saved_bytes is right. 1.77 is in calls a second, so one call takes 1 / 1.77 s."
            ),
        },
        otherwise=(
            "saved_bytes is right. Divide the seconds that the stream saves (bytes / 3e9) by the seconds by which a "
            "call got shorter."
        ),
    ),
    praise=(
        f"{SAVED_BYTES:,} bytes take {1000 * STREAM_SECONDS:.1f} ms at most: less than one per cent of what the step "
        "saved."
    ),
)
HOST_SPEED = Exercise(
    ("gain_percent", "host_ms"),
    host_speed_hint,
    "With a host that takes no time, smaller images gain a few per cent. A slow host costs far more.",
)
