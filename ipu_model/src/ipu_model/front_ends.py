"""Let a front end such as `poptorch` register what the engine needs to know of its objects; it imports no front end.

These functions dispatch on the type of their first argument. A front end registers its own types when it is imported::

    @program_behind.register(PoplarExecutor)
    def _(executor): ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import singledispatch
from typing import TYPE_CHECKING, Any

from ipu_model.errors import Error, kind_of

if TYPE_CHECKING:
    from ipu_model.batching import Batching
    from ipu_model.predict.hardware import System
    from ipu_model.predict.program import Program


@singledispatch
def program_behind(source: Any) -> Program:
    """Return the program of an executor (also one out of memory), a `Profile` or a `Program`; `Error` for others."""
    # Imported here so that `import poptorch`, which only registers its types, does not load the performance model.
    from ipu_model.predict.profile import Profile
    from ipu_model.predict.program import Program

    if isinstance(source, Program):
        return source
    if isinstance(source, Profile):
        if source.program is None:
            raise Error(
                "This profile was read from a file that holds only results, so there is no program to explore. Name "
                "the folder of its report, or a function that returns the program (program.py:function)."
            )
        return source.program
    raise Error(
        "The IPU Model takes a compiled model that poptorch.trainingModel or poptorch.inferenceModel returned, or a "
        f"profile of one; got {kind_of(source)}. For a plain module, also give its inputs and options, as for "
        "ipu_model.profile_module."
    )


@dataclass(frozen=True)
class ModuleChanges:
    """What to change of a copy of a module before it is captured; `None` is as it is.

    `begins` maps modules at which blocks begin to IPUs, in place of all `BeginBlock` annotations; outputs of
    `checkpoints` are recomputation checkpoints in place of the program's own. `sharded`: IPUs work one after another.
    """

    micro_batch: int | None = None
    batching: Batching | None = None
    half: bool = False
    begins: Mapping[str, int] | None = None
    sharded: bool = False
    checkpoints: tuple[str, ...] | None = None


@singledispatch
def captures_of(source: Any) -> Callable[[ModuleChanges], Program] | None:
    """Return what captures the module behind an executor again with changes; `None` for things without a module."""
    return None


@singledispatch
def program_of_module(
    options: Any,
    model: Any,
    inputs: Any,
    *,
    optimizer: Any = None,
    training: bool | None = None,
    machine: str | System | None = None,
    micro_batch: bool = False,
    changes: ModuleChanges | None = None,
) -> Program:
    """Return the program of `model` wrapped with `options`, after `changes` to a copy, as `profile_module`."""
    raise Error(f"ipu_model.profile_module takes poptorch.Options() as options, not {kind_of(options)}.")
