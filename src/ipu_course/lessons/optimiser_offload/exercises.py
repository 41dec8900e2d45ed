"""The exercises of lesson 08: the price of the copies, a placement that fits, rarer copies, and state in parts."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Mapping

import torchvision

import poptorch
from ipu_course import engine
from ipu_course.exercises import Exercise, Number, Numbers, Points
from ipu_course.lessons.optimiser_offload.program import ACCUMULATION, resnet101, training_options

if TYPE_CHECKING:
    from ipu_course.engine import Profile

KIB = 1024
REPLICAS = 4
DEFAULT_THRESHOLD = 8192  # elements from which PopTorch shares a tensor out over replicas
NEARLY_ALL = 0.9  # of the state in parts, so that each replica keeps about a quarter

# The four groups of tensors: key in the options, and what they are called.
OPTIMISER = "location_optimizer"
OTHERS = {
    "location_weight": "the weights, which every forward and backward pass reads",
    "location_accumulator": "the accumulators, which every backward pass reads and writes",
    "location_activation": "the activations, which every micro-batch writes and reads",
}

# The largest threshold with which ResNet-101 fits: it keeps every tensor below the classifier's 1000 x 2048 weights
# on the chip. A test compares it with all other thresholds and all other groups of tensors.
BEST_THRESHOLD = 1000 * 2048
AS_GOOD = 1.001  # of the best time


def place_hint(place: Any, using: Profile) -> str | None:
    """Return the hint for a function that places the program's tensors; ``using`` has them all on the chip."""
    if not callable(place):
        return f"place is a function of the options; you wrote {place!r}."
    options = _placed(place)
    if options.Training.gradient_accumulation != ACCUMULATION:
        return f"Leave the accumulation at {ACCUMULATION}: only the places of tensors are yours to choose."
    if options.device_iterations != 1:
        return (
            f"Leave the device iterations at 1: with {options.device_iterations}, a call has that many updates. Only "
            "the places of tensors are yours to choose."
        )
    places: Mapping[str, Any] = options.TensorLocations.toDict()
    if not any(settings and settings.get("onChip") == 0 for settings in places.values()):
        return (
            "Everything is still on the chip. Settings with useOnChipStorage(False) move a group of tensors, once "
            "you hand them to options.TensorLocations."
        )
    profile = resnet101(options).profile()
    return (
        _memory_hint(places, profile) or _group_hint(places, profile) or _time_hint(places[OPTIMISER], profile, using)
    )


def _placed(place: Any) -> poptorch.Options:
    """Return options that ``place`` has changed, or those that it returns."""
    options = training_options()
    returned = place(options)
    return returned if isinstance(returned, poptorch.Options) else options


def _memory_hint(places: Mapping[str, Any], profile: Profile) -> str | None:
    verdict = engine.memory_verdict(profile)
    if verdict == "fits":
        return None
    advice = "More of the optimiser's state has to leave the chip."
    if (places.get(OPTIMISER) or {}).get("onChip") != 0:
        advice = "What you moved does not make enough room. Move the optimiser's state instead."
    return (
        f"The model's verdict is {verdict!r}: the fullest tile has {profile.memory.max_tile_bytes / KIB:.0f} KiB. "
        f"{advice}"
    )


def _group_hint(places: Mapping[str, Any], profile: Profile) -> str | None:
    moved = [words for key, words in OTHERS.items() if (places.get(key) or {}).get("onChip") == 0]
    if not moved:
        return None
    return (
        f"It fits, but an update takes {milliseconds(profile):.1f} ms. You moved {moved[0]}. Move only what is used "
        "once per update."
    )


def _time_hint(settings: Mapping[str, Any], profile: Profile, on_chip: Profile) -> str | None:
    if profile.device_seconds_per_call <= AS_GOOD * _best().device_seconds_per_call:
        return None
    fullest = f"{profile.memory.max_tile_bytes / KIB:.0f} of {profile.memory.tile_bytes / KIB:.0f} KiB"
    longer = milliseconds(profile) - milliseconds(on_chip)
    advice = "leave more of the smaller tensors on the chip, with a higher minElementsForOffChip."
    if "minElementsForOffChip" not in settings:
        advice = (
            "leave the smaller tensors on the chip, with minElementsForOffChip. If you set it, set it before "
            "setOptimizerLocation, which copies the settings."
        )
    return (
        f"It fits ({fullest}), and an update takes {milliseconds(profile):.1f} ms, {longer:.1f} ms more than on the "
        f"chip. There is a faster placement: {advice}"
    )


@lru_cache(maxsize=1)
def _best() -> Profile:
    return resnet101(_placed(best_place)).profile()


def best_place(options: poptorch.Options) -> None:
    """Move the state of the largest tensors only: the fastest placement that fits."""
    settings = poptorch.TensorLocationSettings().useOnChipStorage(False).minElementsForOffChip(BEST_THRESHOLD)
    options.TensorLocations.setOptimizerLocation(settings)


def milliseconds(profile: Profile) -> float:
    """Return the milliseconds of one weight update."""
    return 1e3 * profile.device_seconds_per_call


def place_score(place: Any, using: Profile) -> Points:
    """Return the time of an update with this placement."""
    return Points(round(milliseconds(resnet101(_placed(place)).profile()), 1), "ms per update", "lower")


def options_hint(options: Any) -> str | None:
    """Return the hint for options of four replicas that share out the optimiser's state and copy nothing."""
    if not isinstance(options, poptorch.Options):
        return f"options is a poptorch.Options(); you wrote {options!r}."
    places: Mapping[str, Any] = options.TensorLocations.toDict()
    return _parts_hint(places) or _replicas_hint(options)


def _parts_hint(places: Mapping[str, Any]) -> str | None:
    moved = [words for key, words in OTHERS.items() if places.get(key)]
    if moved:
        return f"You placed {moved[0]}. This exercise is about the optimiser's state only."
    if OPTIMISER not in places:
        return "The options do not place the state yet. Use options.TensorLocations.setOptimizerLocation(...)."
    settings = places[OPTIMISER]
    if not settings:
        return (
            "The location is empty. setOptimizerLocation copies the settings when you call it, so finish them first "
            "and hand them over then."
        )
    if settings.get("onChip", 1) == 0:
        return "The state is off the chip, so it would be copied. Its parts are small enough to stay on the chip."
    if not settings.get("useReplicatedTensorSharding"):
        return "Every replica still holds the whole state. useReplicatedTensorSharding() gives each replica a part."
    least = settings.get("minElementsForReplicatedTensorSharding", DEFAULT_THRESHOLD)
    share = share_in_parts(least)
    if share < NEARLY_ALL:
        return (
            f"Tensors with fewer than {least:,} elements stay whole, so only {share:.0%} of ResNet-101's state is in "
            "parts. Leave out minElementsForReplicatedTensorSharding, or choose a lower number."
        )
    return None


def share_in_parts(least: int) -> float:
    """Return the share of ResNet-101's parameters, from 0 to 1, in tensors with ``least`` elements or more."""
    return sum(size for size in _sizes() if size >= least) / sum(_sizes())


@lru_cache(maxsize=1)
def _sizes() -> tuple[int, ...]:
    return tuple(weight.numel() for weight in torchvision.models.resnet101().parameters())


def _replicas_hint(options: poptorch.Options) -> str | None:
    if options.replication_factor == 1:
        return f"There is only one replica, so there are no parts: options.replicationFactor({REPLICAS})."
    if options.replication_factor != REPLICAS:
        return f"These are {options.replication_factor} replicas, but the exercise asks for {REPLICAS}."
    if options.Training.gradient_accumulation != ACCUMULATION:
        return (
            f"The places are right. The accumulation is {options.Training.gradient_accumulation}, but it should "
            f"be {ACCUMULATION}."
        )
    return None


PRICE = Numbers(
    Number(
        "state_megabytes",
        44.549160 * 8,
        wrong={
            44.549160 * 4: "That is one moment. AdamW keeps two for each parameter.",
            44.549160 * 12: "That includes the weights or the accumulator. They stay on the chip: every micro-batch "
            "needs them.",
            44.549160 * 16: "That is what an update copies, in and back. The first question is about the size.",
            44.549160 * 64: "That is in megabits. A number of 32 bits has 4 bytes.",
            44_549_160 * 8: "That is in bytes. One MB is a million bytes.",
            44.549160 * 6: "6 bytes would be a first moment in 16 bits. Here both moments have 32 bits.",
        },
        otherwise="Multiply 44.5 million parameters by the bytes that the table gives for AdamW.",
        tolerance=1.0,
    ),
    Number(
        "copy_milliseconds",
        35.64,
        wrong={
            17.82: "The size is right. The state goes in and back, and you counted one way.",
            71.28: "The size is right. Both moments are in it already: they go in once and back once.",
            0.03564: "The size is right, but the time is in seconds. Give milliseconds.",
            8.91: "The size is right. The IPUs share 20 GB/s, and none of them has 20 GB/s of its own.",
            142.6: "The size is right. 20 GB/s is what the IPUs that copy share, and no other IPU copies here.",
        },
        otherwise="Divide twice the size, in and back, by 20 GB/s, which is 20 MB in a millisecond.",
        tolerance=0.3,
    ),
    praise="44.5 million x 8 bytes = 356 MB. Twice that at 20 MB in a millisecond takes 35.6 ms. (The model also "
    "counts a synchronisation before each transfer: 35.8 ms.)",
)

PLACE = Exercise(
    names=("place",),
    find_hint=place_hint,
    praise="No placement that fits is faster (modelled, among all thresholds and groups of tensors).",
    score=place_score,
)

RARE = Numbers(
    Number(
        "accumulation",
        57,
        wrong={
            8: "With 8 micro-batches the copies take 42 % of the time.",
            56: "56 gives 10.03 %, which is just above a tenth.",
            64: "64 makes the micro-batches alone ten times as long as the copies. The copies and the other 4.4 ms are "
            "part of the whole time, too.",
            63: "63 compares the copies with everything except the copies. They are a part of the whole time, too.",
            62: "62 is enough, but smaller accumulations are, too. Solve 35.8 / (5.66 m + 40.2) = 0.1.",
        },
        otherwise="Solve 35.8 / (5.66 m + 40.2) = 0.1 for m, and take the next whole number.",
    ),
    Number(
        "with_momentum",
        63,
        wrong={
            62: "62 makes an update 5.07 % longer, which the table rounds to 5.1 %.",
            60: "With 60, the copies take 5 % of the time. The question is how much longer an update takes than on the "
            "chip, and that column shows 5.2 %.",
            64: "64 is enough, but one less is, too.",
            32: "With 32 an update takes nearly 10 % longer. Keep moving the slider.",
            128: "128 is enough for AdamW. SGD's single velocity is half as large: choose it as the optimiser.",
        },
        otherwise="Choose SGD with momentum, keep the state off the chip, and watch 'longer than on the chip by'.",
    ),
    praise="Rarer copies cost less. But 57 micro-batches of 32 images are 1,824 images per update, so ask whether your "
    "training still learns as much in an epoch (lesson 02).",
)

SHARED = Exercise(
    names=("options",),
    find_hint=options_hint,
    praise="Each replica keeps and updates a quarter of the state on its chip, and nothing goes to streaming memory.",
)
