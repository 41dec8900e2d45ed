"""Where the programs of a search come from: one captured program, and its module captured again with changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ipu_model.errors import Error
from ipu_model.front_ends import ModuleChanges, captures_of, program_behind, program_of_module
from ipu_model.predict.host import HostWork
from ipu_model.predict.profile import Profile
from ipu_model.predict.program import Program


@dataclass(frozen=True)
class Source:
    """A program to explore, and what captures its module again with changes (`None`: there is no module)."""

    program: Program
    again: Callable[[ModuleChanges], Program] | None = None


def source_of(thing: Any, inputs: Any = None, options: Any = None, **more: Any) -> Source:
    """Return the source of programs for whatever a function of `ipu_model.explore` was given.

    `thing` is a compiled executor, also one that ran out of memory, a `Profile`, a `Program`, or a plain module with
    the `inputs`, `options` and further arguments of `ipu_model.profile_module`. A source stays as it is.

    Raises:
        Error: none of these, or inputs and options for something that has its own.
    """
    if inputs is None and options is None:
        unused = [name for name, value in more.items() if value not in (None, False)]
        if unused:
            raise Error(f"Only a plain module takes {', '.join(unused)}, together with its inputs and options.")
        return thing if isinstance(thing, Source) else Source(program_behind(thing), captures_of(thing))
    if inputs is None or options is None:
        raise Error("A plain module needs both the inputs of one call and poptorch.Options().")

    def again(changes: ModuleChanges) -> Program:
        return program_of_module(options, thing, inputs, changes=changes, **more)

    return Source(program_of_module(options, thing, inputs, **more), again)


def host_work_of(thing: Any, host: HostWork | None) -> HostWork:
    """Return the host's work to model a thing with: `host` if it was given, else that of a profile, else none."""
    if host is not None:
        return host
    return thing.host if isinstance(thing, Profile) else HostWork()


def call_for(thing: Any, program: Program, inputs: Any, more: Mapping[str, Any]) -> str:
    """Return the call of `make_it_fit` for a thing, with the names that a program is likely to have for its parts."""
    if inputs is not None:
        given = ["model", "inputs", "options"]
        given += [f"{name}={'optimizer' if name == 'optimizer' else repr(value)}" for name, value in more.items()]
        return f"ipu_model.make_it_fit({', '.join(given)})"
    if isinstance(thing, Profile):
        return "ipu_model.make_it_fit(profile)"
    if isinstance(thing, Program):
        return "ipu_model.make_it_fit(program)"
    return f"ipu_model.make_it_fit({'training' if program.training else 'inference'}_model)"
