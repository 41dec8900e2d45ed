"""The exercises on memory: count what is always live and what is kept, find the floor, and lay a tensor on tiles."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Iterator, Sequence
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from ipu_course import engine
from ipu_course.exercises import Exercise, Number, as_number
from ipu_course.lessons.where_memory_goes.by_hand import (
    LEAST_BYTES,
    STATE_BYTES,
    TILES,
    always_live,
    bytes_of,
    kept_for_backward,
    kept_tensors,
    map_linearly,
    on_last_tiles,
)

if TYPE_CHECKING:
    from ipu_course.engine import Profile

KIB = 1024
NAMES = ("variables", "optimiser state", "gradient accumulators")
IMAGES = (torch.zeros(5, 3, 16, 16), torch.zeros(2, 3, 16, 16))  # not 4, the bytes of an element; no views
NEAR = 0.02  # of the kept bytes: whether the few statistics of normalisation count makes no difference


def small_network() -> nn.Sequential:
    """Return a network with what the checks are about: normalisation, pooling, a view, and large weights."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(8 * 8 * 8, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def frozen_network() -> nn.Sequential:
    """Return the same network with a convolution that is not trained."""
    network = small_network()
    network[0].requires_grad_(False)
    return network


# ------------------------------------------------------------------------------- exercise 1

Case = Callable[[], "tuple[nn.Module, int, bool]"]
CASES: tuple[tuple[str, Case], ...] = (
    ("a float32 network with AdamW and accumulation", lambda: (small_network(), 2, True)),
    ("a half-precision network", lambda: (small_network().half(), 2, True)),
    ("SGD without accumulation", lambda: (small_network(), 0, False)),
    ("a network with a frozen layer", lambda: (frozen_network(), 1, True)),
)


def _trained(network: nn.Module) -> int:
    return sum(each.numel() for each in network.parameters() if each.requires_grad)


def _all(network: nn.Module) -> int:
    return sum(each.numel() for each in network.parameters())


# The position of the wrong number, the number that a misunderstanding gives, and its hint.
_LIVE_MISTAKES: tuple[tuple[int, Callable[[nn.Module, int, bool], float], str], ...] = (
    (
        0,
        lambda network, moments, accumulates: sum(map(bytes_of, network.parameters())),
        "You count the parameters alone. Batch normalisation has a running mean and variance, too: buffers, which "
        "are variables that are not trained.",
    ),
    (
        0,
        lambda network, moments, accumulates: sum(map(bytes_of, (*network.parameters(), *network.buffers()))),
        "You count num_batches_tracked, an integer that the device does not need. Take floating-point buffers only.",
    ),
    (
        0,
        lambda network, moments, accumulates: _all(network),
        "Those are elements. Multiply the elements of each tensor by its bytes, element_size().",
    ),
    (
        0,
        lambda network, moments, accumulates: (
            4 * sum(each.numel() for each in (*network.parameters(), *network.buffers()) if each.is_floating_point())
        ),
        "You count 4 bytes for each variable. In half precision an element has 2: ask each tensor, element_size().",
    ),
    (
        1,
        lambda network, moments, accumulates: moments * STATE_BYTES * _all(network),
        "You keep state for weights that are not trained. Look at requires_grad.",
    ),
    (
        1,
        lambda network, moments, accumulates: moments * sum(map(bytes_of, network.parameters())),
        "You give the state the type of the weights. PopTorch keeps it in float32, 4 bytes, unless you tell the "
        "optimiser otherwise.",
    ),
    (
        1,
        lambda network, moments, accumulates: moments * always_live(network, moments, accumulates)[0],
        "You keep state for buffers, too. The optimiser changes parameters only.",
    ),
    (
        1,
        lambda network, moments, accumulates: STATE_BYTES * _trained(network),
        "You count one tensor of state, whatever the optimiser. `moments` says how many each parameter has.",
    ),
    (
        2,
        lambda network, moments, accumulates: STATE_BYTES * _trained(network),
        "You count accumulators where nothing is accumulated. `accumulates` says whether there are any.",
    ),
    (
        2,
        lambda network, moments, accumulates: STATE_BYTES * _all(network) * accumulates,
        "You accumulate gradients for weights that have none. Look at requires_grad.",
    ),
    (
        2,
        lambda network, moments, accumulates: sum(map(bytes_of, network.parameters())) * accumulates,
        "You give the accumulators the type of the weights. PopTorch keeps them in float32 unless `accum_type` says "
        "otherwise.",
    ),
)


def always_live_hint(count: Any) -> str | None:
    """Return the hint for a function that counts the bytes that are always live."""
    if not callable(count):
        return f"always_live is a function; you wrote {count!r}."
    for words, make in CASES:
        wanted = always_live(*make())
        found = count(*make())
        answers = _as_list(found)
        if len(answers) != len(NAMES):
            return f"always_live returns three numbers: {', '.join(NAMES)}. Yours returned {_short(found)}."
        for place, (name, right, answer) in enumerate(zip(NAMES, wanted, answers)):
            number = as_number(answer)
            if number is None or not math.isclose(number, right):
                return f"Wrong for {words}, in the {name}. {_live_mistake(place, make, number, right)}"
    return None


def _as_list(found: Any) -> list[Any]:
    """Return what a function gives as a list: tuples, arrays and tensors of three numbers are as good as each other."""
    if isinstance(found, dict):
        return []
    try:
        return list(found)
    except TypeError:  # one number, or nothing
        return []


def _live_mistake(place: int, make: Case, found: float | None, right: int) -> str:
    if found is None:
        return "Return a number of bytes."
    for at, mistake, hint in _LIVE_MISTAKES:
        if at == place and math.isclose(found, mistake(*make())):
            return hint
    return f"You count {found:,.0f} bytes, and it has {right:,}."


ALWAYS_LIVE = Exercise(
    names=("always_live",),
    find_hint=always_live_hint,
    praise="It also counts in half precision, without accumulation, and with a frozen layer.",
)

# ------------------------------------------------------------------------------- exercise 2


def _outputs(network: nn.Module, images: Tensor) -> int:
    found = []
    for layer in network.children():
        images = layer(images)
        found.append(bytes_of(images))
    return sum(found)


def _saved(network: nn.Module, images: Tensor, *, weights: bool = False, integers: bool = False) -> int:
    """Return the bytes of all that PyTorch saves; what is saved twice counts twice unless weights are left out."""
    own = {each.data_ptr() for each in (*network.parameters(), *network.buffers())}
    found: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if (weights or tensor.data_ptr() not in own) and (integers or tensor.is_floating_point()):
            found[tensor.data_ptr()] = bytes_of(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network(images)
    return sum(found.values())


def _saved_twice(network: nn.Module, images: Tensor) -> int:
    own = {each.data_ptr() for each in (*network.parameters(), *network.buffers())}
    found: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point() and tensor.data_ptr() not in own:
            found.append(bytes_of(tensor))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network(images)
    return sum(found)


def _saved_in_all(network: nn.Module, images: Tensor) -> int:
    found: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        found.append(bytes_of(tensor))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network(images)
    return sum(found)


@contextmanager
def _pack_watched() -> Iterator[list[Tensor]]:
    """Give the tensors that hooks on saved tensors get after the memory of an earlier one is free again.

    Another tensor may then have its address. A hook that returns no tensor is fine as long as it keeps all of them.
    """
    late: list[Tensor] = []
    unreturned: list[StorageWeakRef] = []

    class WatchedHooks(torch.autograd.graph.saved_tensors_hooks):
        def __init__(self, pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> None:
            def watched(tensor: Tensor) -> Any:
                if any(each.expired() for each in unreturned):
                    late.append(tensor)
                kept = pack(tensor)
                if not isinstance(kept, Tensor):
                    unreturned.append(StorageWeakRef(tensor.untyped_storage()))
                return kept

            super().__init__(watched, unpack)

    with patch.object(torch.autograd.graph, "saved_tensors_hooks", WatchedHooks):
        yield late


_KEPT_MISTAKES: tuple[tuple[Callable[[nn.Module, Tensor], float], str], ...] = (
    (
        lambda network, images: _saved(network, images, weights=True),
        "You count the weights that PyTorch saves. They are always live and were counted in exercise 1.",
    ),
    (
        lambda network, images: _saved(network, images, weights=True, integers=True),
        "You count everything that PyTorch saves, the weights and the indices of max-pooling included. Weights are "
        "always live, and the IPU compares input and output instead of keeping indices.",
    ),
    (
        lambda network, images: _saved(network, images, integers=True),
        "You count the indices of max-pooling, which are integers. The IPU compares input and output instead.",
    ),
    (
        _saved_twice,
        "You count a tensor once for each layer that keeps it. The output of one layer is the input of the next: "
        "count each data_ptr() once.",
    ),
    (
        _saved_in_all,
        "You add up every tensor that `pack` gets. Among them are weights, the indices of max-pooling, and tensors "
        "that two layers save. Leave out the first two, and count the others once, by their data_ptr().",
    ),
    (
        lambda network, images: sum(kept_tensors(network, images).values()) - bytes_of(images),
        "You leave out the images themselves. The first convolution needs them for its weight gradient, so they wait, "
        "too.",
    ),
    (
        lambda network, images: sum(kept_tensors(network, images).values()) / 4,
        "Those are elements. Multiply by element_size().",
    ),
    (
        _outputs,
        "You add up the outputs of all layers. Not every output is kept: that of batch normalisation is needed by "
        "nobody once the ReLU is through.",
    ),
    (
        lambda network, images: kept_for_backward(network, images[:1]),
        "You count one image. Activations are kept for all images of the micro-batch.",
    ),
)


def kept_hint(count: Any) -> str | None:
    """Return the hint for a function that counts the bytes that are kept for the backward pass."""
    if not callable(count):
        return f"kept_for_backward is a function; you wrote {count!r}."
    for images in IMAGES:
        right = kept_for_backward(small_network(), images)
        with _pack_watched() as late:
            found = as_number(count(small_network(), images))
        if found is None:
            return "kept_for_backward returns one number, the bytes of all activations that are kept."
        if late:
            return (
                "Your count loses tensors. `pack` has to return its tensor: PyTorch keeps what it returns, and the "
                "memory of what nobody keeps is used again, at the same address."
            )
        if abs(found - right) <= NEAR * right:
            continue
        for mistake, hint in _KEPT_MISTAKES:
            if abs(found - mistake(small_network(), images)) <= NEAR * right:
                return hint
        if found == 0:
            return "You count nothing. The hook has to be active while the network runs on the images."
        return f"For {len(images)} small images you count {found:,.0f} bytes; it is about {right:,}."
    return None


KEPT = Exercise(
    names=("kept_for_backward",),
    find_hint=kept_hint,
    praise="These are the activations that wait for the backward pass, each counted once.",
)

# ------------------------------------------------------------------------------- exercise 3


def fullest_kib(profile: Profile) -> float:
    """Return what the fullest tile holds, in KiB."""
    return profile.memory.max_tile_bytes / KIB


def freed_hint(from_32: object, from_2: object, by_sgd: object, using: Callable[..., Profile]) -> str | None:
    """Return the hint for what a smaller micro-batch and a plain optimiser free on the fullest tile, in KiB.

    ``using`` returns the profile of the learner's network for a ``micro_batch`` and an ``optimiser``.
    """
    if using(micro_batch=32) is engine.NOT_MODELLED:
        return engine.NOT_HERE
    tile = {size: fullest_kib(using(micro_batch=size)) for size in (1, 2, 16, 32)}
    first, second = tile[32] - tile[16], tile[2] - tile[1]
    sgd = fullest_kib(using(micro_batch=2, optimiser="SGD"))
    momentum = fullest_kib(using(micro_batch=2, optimiser="SGD with momentum"))
    half = fullest_kib(using(micro_batch=32, half=True)) - fullest_kib(using(micro_batch=16, half=True))
    asked = (
        Number(
            "freed_from_32",
            first,
            wrong={
                tile[16]: "That is what the fullest tile still holds with 16. How much less is it than with 32?",
                tile[32] / 2: "Halving the micro-batch does not halve the tile. Move the slider and read it.",
                100 * first / tile[32]: "That is a percentage. The exercise asks for KiB.",
                half: "That is in float16. Set the precision to float32.",
            },
            otherwise="In float32 with AdamW: fullest tile with a micro-batch of 32, minus that with 16.",
            tolerance=1.0,
        ),
        Number(
            "freed_from_2",
            second,
            wrong={
                tile[1]: "That is what the fullest tile still holds with 1. How much less is it than with 2?",
                first / 16: "You scaled the first answer down. Only a part of the tile follows the micro-batch.",
                tile[2] / 2: "Halving does not halve the tile: most of it is always live. Read it.",
            },
            otherwise="In float32 with AdamW: fullest tile with a micro-batch of 2, minus that with 1.",
            tolerance=1.0,
        ),
        Number(
            "freed_by_sgd",
            tile[2] - sgd,
            wrong={
                sgd: "That is what the fullest tile still holds with SGD. How much less is it than with AdamW?",
                tile[2]
                - momentum: "That is what one number for each parameter takes. AdamW keeps two, and SGD without "
                "momentum none.",
            },
            otherwise="In float32 with a micro-batch of 2: fullest tile with AdamW, minus that with SGD.",
            tolerance=1.0,
        ),
    )
    hints = (number.hint(answer) for number, answer in zip(asked, (from_32, from_2, by_sgd)))
    return next((hint for hint in hints if hint is not None), None)


FREED = Exercise(
    names=("freed_from_32", "freed_from_2", "freed_by_sgd"),
    find_hint=freed_hint,
    praise="A smaller micro-batch lowers the hill until hardly any hill is left. From then on, only what lowers the "
    "floor helps.",
)

# ------------------------------------------------------------------------------- exercise 4

# A weight on a few tiles, one on all tiles with a rest, one that a single tile nearly holds, one in float32, and one
# that all tiles share without a rest.
WEIGHTS = ((64 * 64, 2), (1000 * 2048, 2), (100, 2), (512 * 512, 4), (TILES * 200, 2))


def _even(elements: int, element_bytes: int) -> list[float]:
    return [element_bytes * elements / TILES] * TILES


def _first_tiles(elements: int, element_bytes: int) -> list[float]:
    right = map_linearly(elements, element_bytes)
    held = [each for each in right if each]
    return held + [0] * (TILES - len(held))


def _backwards(elements: int, element_bytes: int) -> list[float]:
    return _first_tiles(elements, element_bytes)[::-1]


def _no_least(elements: int, element_bytes: int) -> list[float]:
    return [element_bytes * held for held in on_last_tiles(elements, math.ceil(elements / TILES))]


def _least_elements(elements: int, element_bytes: int) -> list[float]:
    piece = max(math.ceil(elements / TILES), LEAST_BYTES)
    return [element_bytes * held for held in on_last_tiles(elements, piece)]


def _full_last(elements: int, element_bytes: int) -> list[float]:
    right = map_linearly(elements, element_bytes)
    return [max(right) if held else 0 for held in right]


def _split_elements(elements: int, element_bytes: int) -> list[float]:
    total = elements * element_bytes
    return on_last_tiles(total, max(total / TILES, LEAST_BYTES))


def _one_more(elements: int, element_bytes: int) -> list[float]:
    piece = max(elements // TILES + 1, LEAST_BYTES // element_bytes)
    return [element_bytes * held for held in on_last_tiles(elements, piece)]


def _in_elements(elements: int, element_bytes: int) -> list[float]:
    return [held / element_bytes for held in map_linearly(elements, element_bytes)]


_CUT = "You cut elements into parts. A tile holds whole ones: round the elements of a piece up, not its bytes."
_MAP_MISTAKES: tuple[tuple[Callable[[int, int], Sequence[float]], str], ...] = (
    (_even, "You spread the weight evenly over all tiles. A tile holds at least 256 bytes of it, so a small one lies "
            "on few tiles."),
    (_no_least, "You leave out the least piece: a tile in use holds at least 256 bytes of a weight."),
    (_least_elements, "You take at least 256 elements. The rule says 256 bytes."),
    (_first_tiles, "Your tiles in use are the first ones. Weights lie on the last ones, up to tile 1471."),
    (_backwards, "Your pieces lie backwards. They stay in order, so the last tile, 1471, gets the rest."),
    (_full_last, "You fill the last tile in use as much as the others. It only gets the rest."),
    (_split_elements, _CUT),
    (_one_more, "Your piece has one element too many when the tiles can share a weight without a rest: -(-a // b) is "
                "a // b then, not a // b + 1."),
    (_in_elements, "You return elements. Return bytes."),
)  # fmt: skip


def map_hint(mapping: Any) -> str | None:
    """Return the hint for a function that lays a weight on the tiles."""
    if not callable(mapping):
        return f"map_linearly is a function; you wrote {mapping!r}."
    for elements, element_bytes in WEIGHTS:
        given = mapping(elements, element_bytes)
        right = map_linearly(elements, element_bytes)
        words = f"{elements:,} elements of {element_bytes} bytes"
        try:
            found = [as_number(each) for each in given]
        except TypeError:
            return f"map_linearly returns a list of bytes, one number for each tile; yours returned {_short(given)}."
        if len(found) != TILES or None in found:
            return (
                f"Return a number for each of the {TILES:,} tiles, 0 for those without a part; you have {len(found)}."
            )
        if found == right:
            continue
        for mistake, hint in _MAP_MISTAKES:
            if found == list(mistake(elements, element_bytes)):
                return f"Wrong for {words}. {hint}"
        total = sum(each for each in found if each is not None)
        if total != elements * element_bytes:
            return f"For {words}, your tiles hold {total:,.0f} bytes together instead of {elements * element_bytes:,}."
        if any(held % element_bytes for held in found if held is not None):
            return f"Wrong for {words}. {_CUT}"
        return f"For {words}, tile 1471 holds {right[-1]:,} bytes, and {sum(map(bool, right)):,} tiles are in use."
    return None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


MAP = Exercise(
    names=("map_linearly",),
    find_hint=map_hint,
    praise="A weight of 8 KiB lies on 32 tiles, the last of which is always tile 1471.",
)
