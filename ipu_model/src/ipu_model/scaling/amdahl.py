"""Amdahl's law: a part that does not shrink with more replicas bounds what they bring.

Symbols: s the constant share of the time of one replica, R replicas. Speed-up 1 / (s + (1 - s) / R), at most 1 / s
("Memory and Performance Optimisation on the IPU", section 7.3).
"""

from __future__ import annotations

import math

from ipu_model.errors import Error


def speed_up(share: float, replicas: int) -> float:
    """Return how many times faster `replicas` finish the same work when `share` of it stays constant.

    Raises:
        Error: a share outside 0 to 1, or fewer than one replica.
    """
    _check(share, replicas)
    return 1 / (share + (1 - share) / replicas)


def limit(share: float) -> float:
    """Return the speed-up that no number of replicas exceeds; infinity without a constant share.

    Raises:
        Error: a share outside 0 to 1.
    """
    _check(share, 1)
    return 1 / share if share else math.inf


def constant_share(gained: float, replicas: int) -> float:
    """Return the constant share that explains a speed-up of `gained` with so many replicas: (R/S - 1) / (R - 1).

    Raises:
        Error: a speed-up that no constant share explains: at most 0, or above the number of replicas.
    """
    if replicas < 2:
        raise Error(f"A constant share shows in the speed-up of two replicas or more; there are {replicas}.")
    if not 0 < gained <= replicas:
        raise Error(
            f"No constant share explains a speed-up of {gained:g} with {replicas} replicas: it must be "
            f"more than 0 and at most {replicas}."
        )
    return min(1.0, (replicas / gained - 1) / (replicas - 1))


def _check(share: float, replicas: int) -> None:
    if not 0 <= share <= 1:
        raise Error(f"A constant share lies between 0 and 1, not at {share!r}.")
    if replicas < 1:
        raise Error(f"A program has at least one replica, not {replicas!r}.")
