"""The former name of the ladder; new text uses ``ipu_course.ladder`` and ``ipu_course.models``."""

from __future__ import annotations

from ipu_course.ladder import MICRO_BATCH as BATCH_SIZE
from ipu_course.ladder import epoch_seconds, host, micro_batch, published
from ipu_course.models import ClassifierWithLoss, NormaliseOnDevice

__all__ = [
    "BATCH_SIZE",
    "ClassifierWithLoss",
    "NormaliseOnDevice",
    "epoch_seconds",
    "host",
    "micro_batch",
    "published",
]
