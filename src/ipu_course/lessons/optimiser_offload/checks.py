"""The exercises of lesson 08: what leaves the chip, when its copies are cheap, and options that say so."""

from __future__ import annotations

import math
from typing import Any, Mapping

import poptorch
from ipu_course.checks import check, number_hint, whole_number_hint

LESSON = "08"

# Exercise 1: AdamW with 16-bit first and 32-bit second moments, 16-bit weights and accumulators.
FIRST, SECOND, WEIGHT, ACCUMULATOR = 2, 4, 2, 2  # bytes
PARAMETERS = 10_000_000
STATE = FIRST + SECOND
MEGABYTES = 2 * STATE * PARAMETERS / 1e6

# Exercise 2: milliseconds of a micro-batch, of the rest of an update, and of copying the state.
MICRO_BATCH, REST, COPIES = 4, 8, 40
MOST = 0.2

# Exercise 3: what the options are to say.
REPLICAS, ACCUMULATION = 4, 16
OPTIMIZER = "location_optimizer"
OTHERS = {
    "location_weight": "setWeightLocation moves the weights, which every micro-batch reads",
    "location_activation": "setActivationLocation moves activations, which every micro-batch writes and reads",
    "location_accumulator": "setAccumulatorLocation moves the accumulators, which every backward pass reads and writes",
}


def check_bytes(bytes_off_chip: object, megabytes_moved: object) -> None:
    """Exercise 1: bytes of state of a parameter, and megabytes that the copies of one update move."""
    check(
        LESSON,
        "Exercise 1",
        {"bytes_off_chip": bytes_off_chip, "megabytes_moved": megabytes_moved},
        lambda: _bytes_hint(bytes_off_chip) or _moved_hint(megabytes_moved),
        "2 + 4 = 6 bytes of moments leave the chip, and 10 million times 6 bytes go in and back: 120 MB.",
    )


def check_rare_copies(accumulation: object) -> None:
    """Exercise 2: the smallest accumulation with which copies take at most a fifth of the time."""
    check(
        LESSON,
        "Exercise 2",
        {"accumulation": accumulation},
        lambda: _accumulation_hint(accumulation),
        "40 / (4 x 38 + 8 + 40) = 20 %.",
    )


def check_options(options: object) -> None:
    """Exercise 3: state off chip and in parts over 4 replicas, all else on chip, accumulation 16."""
    check(
        LESSON,
        "Exercise 3",
        {"options": options},
        lambda: _options_hint(options),
        "Only the state leaves the chip, and each of the 4 replicas moves its quarter, once in 16 micro-batches.",
    )


def _bytes_hint(value: object) -> str | None:
    wrong = number_hint("bytes_off_chip", value)
    if wrong or value == STATE:
        return wrong
    known = {
        STATE + WEIGHT + ACCUMULATOR: "10 bytes are everything that a parameter has. Its weight and its accumulator "
        "stay on the chip: every micro-batch needs them. Only the moments leave.",
        2
        * SECOND: "8 bytes are two moments of 32 bits, PopTorch's default; here the first one has 16 bits. Or did you "
        "count the accumulator? It collects a gradient from every micro-batch, so it stays on the chip.",
        2 * FIRST: "4 bytes are two moments of 16 bits. Here the second one has 32 bits.",
        FIRST: "AdamW has two moments for each parameter, and 2 bytes are the first one only.",
        8 * STATE: "48 is the number of bits.",
        STATE * 1.0 * PARAMETERS: "That is the state of all parameters together; asked for is one parameter's.",
    }
    if isinstance(value, (int, float)) and value in known:
        return known[value]
    return f"Not {value}: add up the sizes of the two moments of one parameter, in bytes."


def _moved_hint(value: object) -> str | None:
    wrong = number_hint("megabytes_moved", value)
    if wrong or not isinstance(value, (int, float)) or math.isclose(value, MEGABYTES):
        return wrong
    if math.isclose(value, MEGABYTES / 2):
        return "The bytes are right. 60 MB is one way only: the state is read, updated and written back."
    if math.isclose(value, MEGABYTES * 1e6) or math.isclose(value, MEGABYTES * 1e6 / 2):
        return "The bytes are right. megabytes_moved is in MB: 1 MB is a million bytes."
    if math.isclose(value, 2 * MEGABYTES):
        return "The bytes are right. The 6 bytes hold both moments already: they go in once and back once."
    return f"The bytes are right. {value:g} MB is not 10 million parameters times 6 bytes, in and back."


def _accumulation_hint(value: object) -> str | None:
    wrong = whole_number_hint("accumulation", value)
    if wrong or not isinstance(value, int):
        return wrong
    smallest = math.ceil((COPIES / MOST - COPIES - REST) / MICRO_BATCH)
    if value == smallest:
        return None
    reached = COPIES / (MICRO_BATCH * value + REST + COPIES)
    if value == math.ceil(COPIES / MOST / MICRO_BATCH):
        return (
            f"{value} makes the passes alone five times as long as the copies. The update's other {REST} ms and the "
            f"copies themselves belong to the time, too: the copies take only {reached:.1%} of it."
        )
    if value == math.ceil((COPIES / MOST - REST) / MICRO_BATCH):
        return f"{value} compares the copies with everything but the copies. Of the whole time they take {reached:.1%}."
    if value == math.ceil((COPIES / MOST - COPIES) / MICRO_BATCH):
        return f"{value} leaves out the {REST} ms of each update that are neither passes nor copies: {reached:.1%}."
    if reached > MOST:
        return f"With {value} micro-batches an update, the copies take {reached:.1%} of the time: more than a fifth."
    return f"{value} is enough ({reached:.1%}), but not the smallest: solve 40 / (4 m + 8 + 40) = 0.2 for m."


def _options_hint(options: object) -> str | None:
    if not isinstance(options, poptorch.Options):
        return f"options is to be a poptorch.Options(); you wrote {options!r}."
    places: Mapping[str, Any] = options.TensorLocations.toDict()
    return _place_hint(places) or _parts_hint(places[OPTIMIZER], options)


def _place_hint(places: Mapping[str, Any]) -> str | None:
    moved = [words for key, words in OTHERS.items() if places.get(key)]
    if moved:
        return f"{moved[0]}. Only the optimiser's state is to leave the chip."
    if OPTIMIZER not in places:
        return "Nothing says where the state lives: options.TensorLocations.setOptimizerLocation(...) does."
    settings = places[OPTIMIZER]
    if not settings:
        return (
            "The location is empty. setOptimizerLocation copies the settings when it is called: make them first, "
            "then hand them over."
        )
    if settings.get("onChip", 1):
        return "The state is still on the chip: useOnChipStorage(True), and its default, keep it there. Say False."
    return None


def _parts_hint(settings: Mapping[str, Any], options: poptorch.Options) -> str | None:
    if not settings.get("useReplicatedTensorSharding"):
        return "Off chip, but every replica moves the whole state: useReplicatedTensorSharding() gives each a part."
    if options.replication_factor == 1:
        return f"There is one replica only, so there are no parts: options.replicationFactor({REPLICAS})."
    if options.replication_factor != REPLICAS:
        return f"{options.replication_factor} replicas, but {REPLICAS} are asked for."
    if options.Training.gradient_accumulation != ACCUMULATION:
        return (
            f"The places are right. With an accumulation of {options.Training.gradient_accumulation} the copies come "
            f"more or less often than asked for: set it to {ACCUMULATION}."
        )
    return None
