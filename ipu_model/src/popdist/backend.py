"""The instances' way of working together: joining, waiting for one another, work of some of them only."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from ipu_model.errors import Error
from popdist import environment

if TYPE_CHECKING:
    from ipu_model.instances import Group

_T = TypeVar("_T")

# The instances that `execute_on_instances` has limited collectives to, innermost last.
_limits: list[tuple[int, ...]] = []


def init() -> None:
    """Join the other instances, if that has not been done; raise `Error` without `poprun`, or if they are not there."""
    if not environment.isPopdistEnvSet():
        raise Error(
            "popdist.init() was called, but this program was not started by poprun. Call it only if "
            "popdist.isPopdistEnvSet(), or start it with: poprun --num-instances N --num-replicas R python program.py"
        )
    initializeBackend()


def initializeBackend() -> None:
    """Join the other instances, if there are any; a process that an instance started, as loaders do, leaves that to it.

    A spawned process imports the program again. If the program joins outside `if __name__ == "__main__"`, it would
    otherwise join a second time in its instance's place, and the instances would wait for each other for ever.
    """
    if multiprocessing.parent_process() is None:
        whole_run()


def isBackendInitialized() -> bool:
    """Whether this process has joined the others."""
    from ipu_model.instances import joined

    return joined() is not None


def finalizeBackend() -> None:
    """Leave the other instances; all of them must do so."""
    from ipu_model.instances import leave

    leave()


def synchronize() -> None:
    """Return when all instances have called this."""
    group().barrier()


def execute_on_instances(
    instances: Iterable[int], func: Callable[..., _T], *args: object, **kwargs: object
) -> _T | None:
    """Call `func` on these instances only and return its result there, `None` on the others.

    Collectives inside are among these instances. Raises `Error` for an index that no instance has.
    """
    chosen = tuple(sorted(set(instances)))
    place = environment.place()
    unknown = [index for index in chosen if not 0 <= index < place.instances]
    if unknown or not chosen:
        raise Error(
            f"execute_on_instances({set(chosen) or '{}'}): name at least one of the instances 0 to "
            f"{place.instances - 1}, and no other."
        )
    if place.instance not in chosen:
        return None
    _limits.append(chosen)
    try:
        return func(*args, **kwargs)
    finally:
        _limits.pop()


def group() -> Group:
    """Return the instances that collectives are among now: all, or those of `execute_on_instances`."""
    everyone = whole_run()
    return everyone.only(_limits[-1]) if _limits else everyone


def whole_run() -> Group:
    """Return the group of all instances, joining it first if that has not been done."""
    from ipu_model.instances import world

    place = environment.place()
    return world(place.instance, place.instances)
