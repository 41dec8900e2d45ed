"""The exercises on memory techniques: a sweep, checkpoints, a gradient, and a program that fits and is fast."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Iterator, Sequence
from unittest import mock

import torch
from torch import Tensor

import poptorch
from ipu_course import engine
from ipu_course.exercises import Exercise, Number, Points
from ipu_course.lessons.memory_techniques.choices import FITS, fastest_that_fits, fullest_kib, stored
from ipu_course.lessons.memory_techniques.language_model import (
    ACCUMULATION,
    GELU_SLOPE,
    MICRO_BATCH,
    SMALL,
    Block,
    LanguageModel,
    plain_block,
    quick_gelu,
    small_block,
)
from ipu_course.lessons.memory_techniques.learners_program import MakeProgram, profile_of_program, recomputed
from ipu_course.lessons.memory_techniques.sweep import DEFAULT, PROPORTIONS, swept

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule, Profile
    from ipu_course.lessons.memory_techniques.language_model import BlockForward

MOST_SLOWER = 0.02
SET_ENOUGH = 0.95  # of the throughput of the best set
PROGRAM_ENOUGH = 0.9  # of the throughput of the best combination
NEAR = 1e-4

# ------------------------------------------------------------------------------- exercise 1


def cheapest(module: ModelledModule, half_partials: bool) -> float:
    """Return the smallest proportion of the explorer that costs at most 2 % of the throughput."""
    usual = swept(module, DEFAULT, half_partials).samples_per_second
    return min(
        proportion
        for proportion in PROPORTIONS
        if swept(module, proportion, half_partials).samples_per_second >= (1 - MOST_SLOWER) * usual
    )


def proportions_hint(single: object, half: object, using: ModelledModule) -> str | None:
    """Return the hint for the smallest proportions that cost at most 2 %; ``using`` is the captured program."""
    for name, answer, half_partials in (("single", single, False), ("half", half, True)):
        right = cheapest(using, half_partials)
        number = Number(
            name,
            right,
            wrong={
                each: _too_large(name) if each > right else _too_small(name) for each in PROPORTIONS if each != right
            },
            otherwise=f"{name} is one of the slider's proportions: {', '.join(f'{each:g}' for each in PROPORTIONS)}.",
            tolerance=NEAR,
        )
        hint = number.hint(answer)
        if hint is not None:
            return hint
    return None


def _too_small(name: str) -> str:
    return f"With that proportion, {name} costs more than 2 %: look at the last column of the row."


def _too_large(name: str) -> str:
    return f"That costs at most 2 %, but {name} can be smaller: move the slider on."


SWEEP = Exercise(
    names=("single", "half"),
    find_hint=proportions_hint,
    praise="Down to there, smaller plans cost next to nothing. Every program has such a point, and a sweep finds it.",
)

# ------------------------------------------------------------------------------- exercise 2


def block_hint(run_block: Any, using: object = None) -> str | None:
    """Return the hint for a function that runs a block and marks what is kept.

    ``using`` is the captured program, without which there is no verdict: ``NOT_MODELLED`` ends the check before this.
    """
    if not callable(run_block):
        return f"run_block is a function; you wrote {run_block!r}."
    block, x = small_block(), torch.randn(2, SMALL.length, SMALL.width)
    found = run_block(block, x)
    if not isinstance(found, Tensor):
        return "run_block has to return the words after the block."
    with torch.no_grad():
        if found.shape != x.shape or not torch.allclose(found, plain_block(block, x), atol=NEAR):
            return "Your function does not give what the block gives. Checkpoints change no value: mark, and go on."
    marks = _marks_used(run_block)
    if not all(marks):
        return "One of your marks has no effect: go on with the tensor that recomputationCheckpoint returns."
    profile, best = recomputed(run_block), fastest_that_fits(stored().sets).rate
    rate = profile.samples_per_second
    verdict = engine.memory_verdict(profile)
    said = f"The fullest tile needs {fullest_kib(profile):.0f} KiB, at {rate:,.0f} samples/s (modelled)."
    if verdict != FITS:
        return (
            f"{said} The verdict is '{verdict}'. You keep too much: give up what is large and cheap to compute again."
        )
    if rate >= SET_ENOUGH * best:
        return None
    if not marks:
        return f"{said} It fits, but you mark nothing inside the block, so all of it runs a second time."
    return f"{said} It fits, but large products still run twice. Which results take many cycles to compute?"


def _marks_used(run_block: BlockForward) -> list[bool]:
    """Tell for each mark of a block whether the block goes on with what the mark returns."""
    block, x = small_block(), torch.randn(2, SMALL.length, SMALL.width)
    used: list[bool] = []
    count = 1
    while len(used) < count:
        calls = 0

        def mark(*tensors: Any) -> Any:
            nonlocal calls
            calls += 1
            given = tensors[0] if len(tensors) == 1 else tensors
            return _spoilt(given) if calls == len(used) + 1 else given

        with _marking(mark, run_block), torch.no_grad():
            found = run_block(block, x)
        count = calls
        if calls:
            used.append(bool(found.isnan().any()))
    return used


@contextmanager
def _marking(mark: Callable[..., Any], run_block: BlockForward) -> Iterator[None]:
    """Let ``mark`` take the place of PopTorch's op, also under other names that the notebook has given to it."""
    original = poptorch.recomputationCheckpoint
    outside: dict[str, Any] = getattr(run_block, "__globals__", {})
    names = [name for name, value in outside.items() if value is original]
    with mock.patch.object(poptorch, "recomputationCheckpoint", mark):
        outside.update(dict.fromkeys(names, mark))
        try:
            yield
        finally:
            outside.update(dict.fromkeys(names, original))


def _spoilt(given: Any) -> Any:
    """Return tensors of NaN, which every result that uses them becomes, too."""
    return given * float("nan") if isinstance(given, Tensor) else type(given)(map(_spoilt, given))


def block_points(run_block: BlockForward, using: object = None) -> Points:
    """Return the throughput with a learner's checkpoints."""
    best = fastest_that_fits(stored().sets).rate
    return Points(round(recomputed(run_block).samples_per_second, 1), f"samples/s; the best of 256 sets: {best:,.0f}",
                  "higher")  # fmt: skip


CHECKPOINTS = Exercise(
    names=("run_block",),
    find_hint=block_hint,
    praise="It fits, and what runs twice is cheap.",
    score=block_points,
)

# ------------------------------------------------------------------------------- exercise 3


def gradient_hint(gradient: Any) -> str | None:
    """Return the hint for the backward pass of x * sigmoid(1.702 x)."""
    if not callable(gradient):
        return f"gradient is a function; you wrote {gradient!r}."
    x = torch.arange(-20, 21, dtype=torch.float64).div(5).requires_grad_()  # from -4 to 4, and exactly 0
    incoming = torch.linspace(0.5, 2.0, 41, dtype=torch.float64)
    y = quick_gelu(x)
    (wanted,) = torch.autograd.grad(y, x, incoming)
    x, y = x.detach(), y.detach()
    given = gradient([x], [y], [incoming], {})
    found = given[0] if isinstance(given, (list, tuple)) and len(given) == 1 else given
    if not isinstance(found, Tensor):
        return "gradient returns a list with one tensor, the gradient of the one input."
    if found.shape != x.shape:
        return f"The gradient has the shape of the input, {list(x.shape)}; yours has {list(found.shape)}."
    if torch.allclose(found.double(), wanted, atol=NEAR):
        return None
    if found[x == 0].isnan().any():
        return "At x = 0 your gradient is not a number: the result divided by x fails there. Compute the sigmoid of x."
    share, plain = torch.sigmoid(GELU_SLOPE * x), torch.sigmoid(x)
    mistakes = (
        (wanted / incoming, "That is the derivative. The chain rule multiplies it by gradients[0]."),
        (incoming * share, "You treat the sigmoid as a constant. It depends on x, too: use the product rule."),
        (incoming * (share + x * share * (1 - share)), "The inner derivative is missing: the sigmoid is of 1.702 x."),
        (incoming * (plain + x * plain * (1 - plain)), "That is the gradient of x * sigmoid(x), without the 1.702."),
        (incoming * GELU_SLOPE * x * share * (1 - share), "You have one half of the product rule: x is a factor, too."),
        (incoming * (share + GELU_SLOPE * share * (1 - share)), "The second half of the product rule is x times s'."),
        (incoming + wanted / incoming, "The chain rule multiplies by gradients[0]; you add it."),
    )  # fmt: skip
    for wrong, hint in mistakes:
        if torch.allclose(found.double(), wrong, atol=NEAR):
            return hint
    worst = float((found.double() - wanted).abs().max())
    return f"It differs from what PyTorch's autograd computes, by up to {worst:.2g} for x from -4 to 4."


GRADIENT = Exercise(
    names=("gradient",),
    find_hint=gradient_hint,
    praise="It equals autograd's gradient, and it needs nothing from the forward pass but the input.",
)

# ------------------------------------------------------------------------------- exercise 4


def program_hint(make_program: Any, using: object = None) -> str | None:
    """Return the hint for a function that makes a network and options that fit one IPU and are fast.

    ``using`` is the captured program, as in ``block_hint``.
    """
    if not callable(make_program):
        return f"make_program is a function; you wrote {make_program!r}."
    with torch.device("meta"):
        made = make_program()
        usual = LanguageModel()
    if not isinstance(made, (tuple, list)) or len(made) != 2:
        return "make_program returns two things: the network and the options."
    network, options = made
    if not isinstance(network, LanguageModel):
        return f"The first thing is a LanguageModel; yours is a {type(network).__name__}."
    if not isinstance(options, poptorch.Options):
        return f"The second thing is poptorch.Options; yours is a {type(options).__name__}."
    if [each.shape for each in network.parameters()] != [each.shape for each in usual.parameters()]:
        return "Your network has other weights. Change how it runs, not what it computes."
    hint = _block_changed(network)
    if hint is not None:
        return hint
    if options.device_iterations != 1:
        return "Leave the device iterations at 1: they have no part in memory, and the score would not be comparable."
    return _profile_hint(profile_of_program(make_program))


def _block_changed(network: LanguageModel) -> str | None:
    """Return the hint for blocks that give other values than the lesson's."""
    block, x = small_block(), torch.linspace(-3.0, 3.0, 2 * SMALL.length * SMALL.width)
    words = x.view(2, SMALL.length, SMALL.width)
    for each in network.blocks:
        if not isinstance(each, Block):
            return f"A block of yours is a {type(each).__name__}. Change how the blocks run, not what they are."
        run, activation = each.run, each.feed.activation.function
        with torch.no_grad(), mock.patch.object(poptorch, "custom_op", _as_registered):
            if run is not None and not torch.allclose(run(block, words), plain_block(block, words), atol=NEAR):
                return "Your block does not give what the lesson's gives. Change how it runs, not what it computes."
            if not torch.allclose(activation(x), quick_gelu(x), atol=NEAR):
                return "Your activation is not x * sigmoid(1.702 x). Change how it runs, not what it computes."
    return None


def _as_registered(inputs: Sequence[Tensor], *rest: Any, **named: Any) -> list[Tensor]:
    """Compute the custom operation of the lesson, which gives zeros outside of an IPU's program."""
    return [quick_gelu(inputs[0])]


def _profile_hint(profile: Profile) -> str | None:
    if len(profile.memory) > 1 or profile.replicas > 1:
        return "Your program takes more than one IPU. Here it has to fit on one."
    batch = MICRO_BATCH * ACCUMULATION
    if profile.samples_per_call != batch:
        return (
            f"A weight update of yours uses {profile.samples_per_call:,} samples instead of {batch}. Keep the "
            f"accumulation of {ACCUMULATION}."
        )
    best = fastest_that_fits(stored().combinations).rate
    memory, rate = profile.memory[0], profile.samples_per_second
    said = f"The fullest tile needs {fullest_kib(profile):.0f} KiB, at {rate:,.0f} samples/s (modelled)."
    if engine.memory_verdict(profile) != FITS:
        peak = memory.liveness[memory.peak]
        return (
            f"{said} The verdict is '{engine.memory_verdict(profile)}'. The peak is in {peak.name} ({peak.phase}), "
            f"with {peak.temporary_bytes / 1024:.0f} KiB of temporary data: is it a spike or the hill?"
        )
    if rate < PROGRAM_ENOUGH * best:
        return (
            f"{said} It fits, and combinations of the lesson's techniques reach {best:,.0f}. Which of your techniques "
            "costs most time, and which one that saves time is missing?"
        )
    return None


def program_points(make_program: MakeProgram, using: object = None) -> Points:
    """Return the throughput of a learner's program."""
    every = stored().combinations
    best = fastest_that_fits(every).rate
    return Points(round(profile_of_program(make_program).samples_per_second, 1),
                  f"samples/s; the best of {len(every)} combinations: {best:,.0f}", "higher")  # fmt: skip


PROGRAM = Exercise(
    names=("make_program",),
    find_hint=program_hint,
    praise="It fits on one IPU, with the same weights and the same batch.",
    score=program_points,
)
