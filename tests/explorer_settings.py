"""Settings to try an explorer with: some of all that its controls allow."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from typing import Any


def some_of(*controls: Iterable[Any], count: int = 16) -> list[tuple[Any, ...]]:
    """Return `count` combinations of the controls' values, the same ones in every run."""
    return random.Random(0).sample(list(itertools.product(*controls)), count)
