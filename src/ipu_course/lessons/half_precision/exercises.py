"""The exercises of lesson 01: the window of loss scaling, the layers that leave the range, and their repair."""

from __future__ import annotations

from ipu_course.exercises import Exercise, Number, Numbers
from ipu_course.lessons.half_precision.diagnosis import layers_hint, repair_hint

__all__ = ["DIAGNOSIS", "REPAIR", "WINDOW"]

WINDOW = Numbers(
    Number(
        "smallest",
        8,
        wrong={
            7: "At 2^7, 1.3 % of the activation gradients are still below 2^-14.",
            256: "2^8 is the right scaling. The question is about the exponent.",
            12: "2^12 is far more than the activation gradients need. Find the first power with less than 1 %.",
            14: "That moves 1 to 2^14. Only 1 % of the activation gradients may stay below 2^-14: read the table.",
        },
        otherwise="Move the slider up from 0, until the table shows less than 1 % below 2^-14.",
    ),
    Number(
        "largest",
        11,
        wrong={
            12: "At 2^12 the largest gradient of a weight is above 65,504. Read the last column.",
            15: "At 2^15 the activation gradients still fit, but a weight has the largest gradient (last column).",
            2048: "2^11 is the right scaling. The question is about the exponent.",
        },
        otherwise="Move the slider until the largest gradient in the table exceeds 65,504, and go one step back.",
    ),
    praise="Only four powers of two, 2^8 to 2^11, work at both ends before training. The workshop uses 1000 [1].",
)

DIAGNOSIS = Exercise(
    names=("layers_out_of_range",),
    find_hint=layers_hint,
    praise="In the camera's network it finds 'energy' and 'pool'. These layers cannot compute in fp16.",
)

REPAIR = Exercise(
    names=("InFloat32",),
    find_hint=repair_hint,
    praise="With your wrapper around energy, pool and log, the camera's network learns in 16.16: above 85 %.",
)
