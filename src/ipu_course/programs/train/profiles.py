"""Modelled profiles of the program, and the sentences made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipu_course import engine
from ipu_course.errors import CourseError
from ipu_course.programs.train.ipu_options import make_optimiser, training_options
from ipu_course.programs.train.loading import example_micro_batch
from ipu_course.programs.train.model import training_module
from ipu_course.programs.train.settings import Settings

if TYPE_CHECKING:
    from ipu_course.engine import HostWork, ModelledModule, Profile

KIB = 1024


def modelled(settings: Settings, host: HostWork | None) -> Profile:
    """The modelled profile of one training call, without training.

    Raises ``CourseError`` where there is no IPU Model.
    """
    return captured(settings).profile(host)


def captured(settings: Settings) -> ModelledModule:
    """The training program, captured once, to be profiled with other loops and hosts.

    Raises ``CourseError`` where there is no IPU Model.
    """
    module = training_module(settings)
    program = engine.modelled_module(
        module,
        example_micro_batch(settings),
        training_options(settings),
        optimizer=make_optimiser(settings, module),
    )
    if program is engine.NOT_MODELLED:
        raise CourseError(
            "a modelled profile needs the IPU Model, which is not installed here; leave out --profile-only and "
            "--ladder to train on the IPUs of this machine and measure"
        )
    return program


def epoch_seconds(profile: Profile, calls: int) -> float:
    """Modelled seconds of an epoch of so many calls, host included."""
    return calls * profile.call_seconds


def memory_text(profile: Profile) -> str:
    """What the fullest tile holds, and what it can hold."""
    memory = profile.memory
    return f"{memory.max_tile_bytes / KIB:.0f} KiB on the fullest tile, limit {memory.tile_bytes / KIB:.0f} KiB"


def epoch_text(profile: Profile, calls: int) -> str:
    """The modelled time of an epoch in words, or that there is none."""
    verdict = engine.memory_verdict(profile)
    if not engine.may_run(profile):
        return f"modelled on IPU: {verdict} ({memory_text(profile)})"
    doubt = "" if verdict == "fits" else f" (memory is {verdict}: {memory_text(profile)})"
    return f"modelled on IPU: {seconds_text(epoch_seconds(profile, calls))}{doubt}"


def compilation_text(profile: Profile) -> str:
    """The modelled time of the graph compilation, in words that follow those of an epoch."""
    minutes, seconds = divmod(round(profile.compilation_seconds), 60)
    return f", and {minutes} min {seconds} s for the compilation" if engine.may_run(profile) else ""


def seconds_text(seconds: float) -> str:
    """Seconds with one digit, below one second with two."""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds:.2f} s"
