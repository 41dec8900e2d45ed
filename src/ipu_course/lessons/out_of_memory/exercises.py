"""The exercises on programs that do not fit: find the cause of each of five, and mend it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Iterator, Sequence
from unittest.mock import patch

import torch
from torch import Tensor, nn

import poptorch
from ipu_course.exercises import Exercise, Points, as_number
from ipu_course.lessons.out_of_memory.broken import (
    BLOCKS,
    EXPERT_WIDTH,
    PROGRAMS,
    WIDTHS,
    WORD_SIZE,
    WORDS,
    B,
    C,
    D,
    E,
    Experts,
    Pass,
    Vocabulary,
    convolution,
    convolutions,
    experts,
    plain_forward,
    recomputed,
    with_head,
)
from ipu_course.lessons.out_of_memory.decision import (
    CAUSES,
    KIB,
    UNEVEN,
    cause_named,
    cause_of,
    facts_of,
    parting,
)

if TYPE_CHECKING:
    from ipu_course.engine import Profile
    from ipu_course.lessons.out_of_memory.broken import BrokenProgram, Profiles

NEAR = 1e-4
FEWEST = 0.95  # of the parameters that program C has
CONVOLUTIONS = "53 convolutions"


def _kib(profile: Profile) -> str:
    return f"{profile.memory.max_tile_bytes / KIB:,.0f} KiB"


def _does_not_fit(profile: Profile) -> str | None:
    """Return the verdict and the fullest tile in words, or ``None`` for a program that surely fits."""
    verdict = profile.verdict.value
    return None if verdict == "fits" else f"The verdict is '{verdict}': the fullest tile needs {_kib(profile)}."


# ------------------------------------------------------------------------------- exercise 1


def causes_hint(causes: object, using: Profiles) -> str | None:
    """Return the hint for the causes of the five programs, by their names."""
    if not isinstance(causes, dict):
        return 'causes is a dictionary, such as {"A": "code", ...}.'
    for program, profile in zip(PROGRAMS, using):
        if program.name not in causes:
            return f"Program {program.name} has no cause yet."
        hint = _cause_hint(program, profile, causes[program.name])
        if hint is not None:
            return hint
    return None


def _cause_hint(program: BrokenProgram, profile: Profile, answer: object) -> str | None:
    named = cause_named(answer)
    if named is None:
        return f"{answer!r} is not a cause in the diagram, which has: {', '.join(CAUSES)}."
    facts = facts_of(profile)
    if named == cause_of(facts):
        return None
    return f"Program {program.name} is not '{named}': {parting(facts, named)}."


WALK = Exercise(
    names=("causes",),
    find_hint=causes_hint,
    praise="Five programs need nearly the same number of bytes, for five causes.",
)

# ------------------------------------------------------------------------------- exercise 2


def forward_hint(forward: Any, using: Profile) -> str | None:
    """Return the hint for a function that runs program A's blocks and keeps some of their outputs."""
    if not callable(forward):
        return f"forward is a function; you wrote {forward!r}."
    small, images = [convolution(3, 4), *(convolution(4, 4) for _ in range(BLOCKS - 1))], torch.rand(8, 3, 8, 8)
    with _checkpoints_followed(forward) as marks:
        found = forward(small, images)
    if not isinstance(found, Tensor):
        return "forward has to return the images after the last block."
    if found.shape[1:] != (4, 8, 8) or not torch.allclose(found, plain_forward(small, images), atol=NEAR):
        return (
            "forward does not give what the blocks give one after another. Run all of them, in their order, on the "
            "whole micro-batch: batch normalisation sees all of its images."
        )
    if marks and None in torch.autograd.grad(found.sum(), marks, allow_unused=True):
        return (
            "recomputationCheckpoint returns the tensor that is kept, and you go on with the one from before. A "
            "compiler may remove an op whose result nobody reads. Give the next block what the op returns."
        )
    profile = recomputed(forward)
    if profile.verdict.value == "fits":
        return None
    if profile.memory.max_tile_bytes >= 0.99 * using.memory.max_tile_bytes:
        return (
            f"The fullest tile still needs {_kib(profile)}. Without a checkpoint between the blocks, the backward pass "
            "first computes all activations again, and then has all of them at once."
        )
    return f"{_does_not_fit(profile)} What lies between two checkpoints is computed again at once: keep more outputs."


@contextmanager
def _checkpoints_followed(forward: Any) -> Iterator[list[Tensor]]:
    """Add a zero to every tensor that is marked as a checkpoint, and give these zeros.

    The result depends on such a zero only if the function goes on with what the op returns. The op is also followed
    under other names that the notebook has given to it.
    """
    marks: list[Tensor] = []
    checkpoint = poptorch.recomputationCheckpoint

    def follow(tensor: Tensor) -> Tensor:
        marks.append(torch.zeros((), requires_grad=True))
        return tensor + marks[-1]

    def checkpoint_and_follow(*tensors: Any) -> Any:
        kept = checkpoint(*tensors)
        return follow(kept) if isinstance(kept, Tensor) else type(kept)(map(follow, kept))

    outside: dict[str, Any] = getattr(forward, "__globals__", {})
    others = {name: checkpoint_and_follow for name, value in outside.items() if value is checkpoint}
    with patch.object(poptorch, "recomputationCheckpoint", checkpoint_and_follow), patch.dict(outside, others):
        yield marks


def forward_points(forward: Pass, using: Profile) -> Points:
    """Return the fullest tile of program A with these checkpoints."""
    return Points(round(recomputed(forward).memory.max_tile_bytes / KIB), "KiB on the fullest tile", "lower")


RECOMPUTE = Exercise(
    names=("forward",),
    find_hint=forward_hint,
    praise="The same results, the same micro-batch, and the fullest tile has room. The price is a second forward pass.",
    score=forward_points,
)

# ------------------------------------------------------------------------------- exercise 3


def together_hint(together: Any, using: Profile) -> str | None:
    """Return the hint for a module that holds many small layers in few tensors."""
    if not isinstance(together, type) or not issubclass(together, nn.Module):
        return "Together is a class, a subclass of nn.Module."
    few, rows = experts(3), torch.randn(5, EXPERT_WIDTH)
    made = together(few)
    found = made(rows)
    if not isinstance(found, Tensor) or found.shape != rows.shape:
        shape = list(found.shape) if isinstance(found, Tensor) else found
        return f"forward returns rows of {EXPERT_WIDTH} values, as many as it gets; yours gave {shape} for [5, 32]."
    trained = sum(each.numel() for each in made.parameters())
    if trained < sum(each.numel() for layer in few for each in layer.parameters()):
        return f"Your module has {trained:,} parameters for 3 layers. Wrap all weights and biases in nn.Parameter."
    with torch.no_grad():
        if torch.allclose(found, sum((layer(rows) for layer in few), torch.zeros(())), atol=NEAR):
            return "You add up the outputs themselves: the sum is over torch.relu of each layer's output."
        if torch.allclose(found, torch.relu(sum((layer(rows) for layer in few), torch.zeros(()))), atol=NEAR):
            return "You add up first and take torch.relu of the sum: take it of each layer's output, and then add up."
        if torch.allclose(found, _not_transposed(few, rows), atol=NEAR):
            return "Weights of nn.Linear are [out, in], and you multiply with them as [in, out]: transpose them."
        if not torch.allclose(found, Experts(few)(rows), atol=NEAR):
            return (
                "Your module does not give what the layers give. Compare it with 2 layers by hand: is each bias added "
                "to the outputs of its own layer, and is each weight, which nn.Linear keeps as [out, in], transposed?"
            )
    profile = B.modelled(with_head(together(experts()))).profile()
    facts = facts_of(profile)
    if facts.fullest > UNEVEN * facts.average:
        return (
            f"The fullest tile holds {_kib(profile)}, {facts.fullest / facts.average:.1f} times the average: there are "
            "still many small tensors. Stack them into one weight and one bias."
        )
    return _does_not_fit(profile)


def _not_transposed(layers: Sequence[nn.Linear], rows: Tensor) -> Tensor:
    return sum((torch.relu(rows @ layer.weight + layer.bias) for layer in layers), torch.zeros(()))


JOIN = Exercise(
    names=("Together",),
    find_hint=together_hint,
    praise="The same outputs from two tensors, which lie evenly on all tiles. It also needs less code and less time, "
    "because one product takes the place of 710.",
)

# ------------------------------------------------------------------------------- exercise 4


def widths_hint(widths: Sequence[int], using: Profile) -> str | None:
    """Return the hint for the numbers of channels of program C's convolutions."""
    try:
        numbers = [as_number(each) for each in widths]
    except TypeError:  # one number
        numbers = [None]
    if any(number is None or not number.is_integer() for number in numbers):
        return "widths is a list of whole numbers."
    channels = [int(number) for number in numbers if number is not None]
    if len(channels) != len(WIDTHS):
        return f"Program C has {CONVOLUTIONS}, and you give {len(channels)}."
    if min(channels) < 1:
        return "Every convolution needs one output channel at least."
    with torch.device("meta"):
        before, after = (sum(each.numel() for each in convolutions(of).parameters()) for of in (WIDTHS, channels))
    if after < FEWEST * before:
        return f"Your network has {after / 1e6:.1f} million parameters, and it should keep the {before / 1e6:.1f}."
    with torch.device("meta"):
        network = convolutions(channels)
    profile = C.modelled(network).profile()
    if profile.verdict.value == "fits":
        return None
    shapes = len(set(zip((3, *channels), channels)))
    if shapes > len(channels) / 2:
        return (
            f"{_does_not_fit(profile)} Your convolutions have {shapes} different shapes, and each shape has code of "
            "its own: make them equal."
        )
    return f"{_does_not_fit(profile)} With {shapes} different shapes it is no longer the code: use fewer channels."


EQUAL = Exercise(
    names=("widths",),
    find_hint=widths_hint,
    praise="The network is as deep and no smaller, but layers of one shape share one copy of their code.",
)

# ------------------------------------------------------------------------------- exercise 5


def state_and_logits_hint(state_options: Any, logits: Any, using: Profile) -> str | None:
    """Return the hint for the options of program D and the last product of program E.

    ``using`` is the profile of program D as it is.
    """
    return _state_hint(state_options, using) or _logits_hint(logits)


def _state_hint(state_options: Any, before: Profile) -> str | None:
    options = state_options if isinstance(state_options, poptorch.Options) else state_options()  # options are callable
    if not isinstance(options, poptorch.Options):
        return (
            f"state_options has to return poptorch.Options; yours returned {type(options).__name__}. Make the options "
            "first, set the location in a second line, and return the options in a third."
        )
    profile = D.modelled(options=options).profile()
    held = [each.memory[0].bytes_by_category for each in (before, profile)]
    if held[1].get("variables", 0.0) < 0.9 * held[0]["variables"]:
        return (
            "Program D: your weights are off the chip, too. Every micro-batch needs them, so they would be streamed "
            "all the time. Move the optimiser state only: setOptimizerLocation."
        )
    if held[1].get("optimiser state", 0.0) > 0.9 * held[0]["optimiser state"]:
        return (
            f"Program D: the optimiser state is still on the chip ({held[1]['optimiser state'] / KIB:,.0f} KiB of the "
            "fullest tile). Give setOptimizerLocation settings that do not use on-chip storage."
        )
    wrong = _does_not_fit(profile)
    return None if wrong is None else f"Program D: {wrong}"


def _logits_hint(logits: Any) -> str | None:
    words, weight = torch.randn(3, WORD_SIZE), torch.randn(WORDS, WORD_SIZE)
    found = logits(words, weight)
    if not isinstance(found, Tensor) or found.shape != (3, WORDS):
        return f"Program E: logits returns [rows, {WORDS:,}], the product of words and weight.t()."
    if not torch.allclose(found, words @ weight.t(), atol=1e-2):
        return "Program E: logits has to give the values of words @ weight.t()."
    with torch.device("meta"):
        network = Vocabulary(logits)
    profile = E.modelled(network).profile()
    wrong = _does_not_fit(profile)
    if wrong is None:
        return None
    facts = facts_of(profile)
    if facts.fullest > UNEVEN * facts.average:
        return (
            f"Program E: {wrong} That is {facts.fullest / facts.average:.1f} times the average tile: a part of so few "
            "columns lies on few tiles. Cut the product into fewer parts."
        )
    return (
        f"Program E: {wrong} The temporary data of the largest op take {facts.one_op / KIB:,.0f} KiB of it. Cut the "
        "product into more parts."
    )


SPLIT = Exercise(
    names=("state_options", "logits"),
    find_hint=state_and_logits_hint,
    praise="The state waits in streaming memory for its update, and the product runs in parts, one after another.",
)
