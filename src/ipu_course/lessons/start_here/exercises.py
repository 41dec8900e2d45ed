"""The exercises of lesson 00: bytes spread over tiles, a training loop to port, and the fullest tile of a profile."""

from __future__ import annotations

from ipu_course.exercises import Exercise, Number, Numbers
from ipu_course.lessons.start_here.explorer import kib_for_parameters
from ipu_course.lessons.start_here.port import port_hint

__all__ = ["FULLEST_TILE", "PORT", "SPREAD_EVENLY"]

RESNET101_PARAMETERS, BYTES_EACH, IPUS, TILES = 44_549_160, 10, 2, 1472
EVENLY = RESNET101_PARAMETERS * BYTES_EACH / (IPUS * TILES) / 1024

SPREAD_EVENLY = Numbers(
    Number(
        "kib_on_each_tile",
        EVENLY,
        wrong={
            IPUS * EVENLY: "That is for one IPU. The parameters are spread over the tiles of both IPUs.",
            EVENLY / BYTES_EACH: "That counts one byte for each parameter. Training keeps 10.",
            EVENLY / 5: "That counts only the weights, at 2 bytes each. The 10 bytes include the optimiser's share.",
            1024 * EVENLY: "Those are bytes. One KiB has 1,024 of them.",
            1.024 * EVENLY: "You divided by 1,000, which gives kB. A KiB has 1,024 bytes, and a tile has 624 KiB.",
            round(EVENLY): "That is right, but rounded: give one digit after the decimal point.",
            8 * EVENLY: "You counted bits, but the 10 are already bytes.",
            IPUS * TILES * EVENLY: "That is the total memory. Each tile holds only a part of it.",
        },
        tolerance=0.1,
        otherwise="Divide all bytes by the number of tiles of both IPUs, and then by 1,024.",
    ),
    praise="Spread evenly, the parameters take nearly a quarter of each tile. Keep this number for exercise 3.",
)

PORT = Exercise(
    names=("WithLoss", "train_on_ipu"),
    find_hint=port_hint,
    praise="Your loop reports the losses of plain PyTorch, uses the options, and brings the trained weights back.",
)


def fullest_tile_hint(kib: object, using: object) -> str | None:
    """Return a hint unless ``kib`` is what IPU 1 of the profile ``using`` holds for its parameters."""
    first, second = (kib_for_parameters(using, ipu) for ipu in (0, 1))
    memory = using.memory[1]  # type: ignore[attr-defined]  # a Profile, which needs the IPU Model
    state = memory.bytes_by_category["optimiser state"] / 1024
    return Number(
        "kib_on_ipu_1",
        second,
        wrong={
            first: "Those are the three rows of IPU 0. The question is about IPU 1.",
            first + second: "You added up both IPUs, but a tile belongs to one of them.",
            state: "That is only the optimiser state. Add the weights and the gradient accumulators.",
            memory.max_tile_bytes / 1024: "That is everything on the tile, including code and activations.",
        },
        tolerance=0.3,
        otherwise="Under 'What fills the memory?', add three rows of IPU 1: variables, optimiser state, accumulators.",
    ).hint(kib)


FULLEST_TILE = Exercise(
    names=("kib_on_ipu_1",),
    find_hint=fullest_tile_hint,
    praise="That is half as much again as with an even spread. The solution below explains why.",
)
