"""The exercises on gradient accumulation: write it, plan it for four IPUs, find enough of it, and change to Sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable

import torch
from torch import Tensor, nn

from ipu_course.exercises import Exercise, Number, Numbers, as_number
from ipu_course.models import SmallNetwork, WithLoss
from ipu_course.schedule import busy_by_steps, busy_by_time

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule

Update = Callable[[nn.Module, torch.optim.Optimizer, Tensor, Tensor, int], Any]
"""One weight update: network, optimiser, all images, all labels, and the number of micro-batches."""

IMAGES, RATE, UPDATES = 24, 0.05, 2
NEAR = 1e-3  # of the distance that the weights go: sums in another order differ far less

STAGES, GLOBAL_BATCH, LEAST_BUSY = 4, 512, 0.8
# m / (m + 3) is 16 / 19 = 84.2 % and 8 / 11 = 72.7 %: of the divisors of 512, 16 is the smallest that is enough.
PLAN = (32, 16)

LEAST_SHARE = 0.95
# No accumulation comes closer to the highest rate than this one, which takes no longer to model.
ENDLESS = 4096
BY_COUNTING_STEPS = 38  # 38 / (38 + 2) = 95 %
BY_TIME = 19  # 19 / (19 + 1) = 95 %


def one_large_batch(
    network: nn.Module, optimiser: torch.optim.Optimizer, images: Tensor, labels: Tensor, micro_batches: int = 1
) -> None:
    """Make one weight update in plain PyTorch with all images at once; ``network`` returns logits and mean loss."""
    optimiser.zero_grad()
    network(images, labels)[1].backward()
    optimiser.step()


def _without_division(network: Any, optimiser: Any, images: Tensor, labels: Tensor, micro_batches: int) -> None:
    optimiser.zero_grad()
    for part, right in zip(images.chunk(micro_batches), labels.chunk(micro_batches)):
        network(part, right)[1].backward()
    optimiser.step()


def _never_zeroed(network: Any, optimiser: Any, images: Tensor, labels: Tensor, micro_batches: int) -> None:
    for part, right in zip(images.chunk(micro_batches), labels.chunk(micro_batches)):
        (network(part, right)[1] / micro_batches).backward()
    optimiser.step()


def _zeroed_inside(network: Any, optimiser: Any, images: Tensor, labels: Tensor, micro_batches: int) -> None:
    for part, right in zip(images.chunk(micro_batches), labels.chunk(micro_batches)):
        optimiser.zero_grad()
        (network(part, right)[1] / micro_batches).backward()
    optimiser.step()


def _step_inside(network: Any, optimiser: Any, images: Tensor, labels: Tensor, micro_batches: int) -> None:
    for part, right in zip(images.chunk(micro_batches), labels.chunk(micro_batches)):
        one_large_batch(network, optimiser, part, right)


def _cut_with_split(network: Any, optimiser: Any, images: Tensor, labels: Tensor, micro_batches: int) -> None:
    optimiser.zero_grad()
    for part, right in zip(images.split(micro_batches), labels.split(micro_batches)):
        (network(part, right)[1] / micro_batches).backward()
    optimiser.step()


def _divided_by_images(network: Any, optimiser: Any, images: Tensor, labels: Tensor, micro_batches: int) -> None:
    optimiser.zero_grad()
    for part, right in zip(images.chunk(micro_batches), labels.chunk(micro_batches)):
        (network(part, right)[1] / len(images)).backward()
    optimiser.step()


_MISTAKES: tuple[tuple[Update, str], ...] = (
    (
        _without_division,
        "The update is too large by a factor equal to the number of micro-batches. backward() adds gradients up, and "
        "each loss is already a mean over its own micro-batch: what turns a sum of means into one mean?",
    ),
    (
        _never_zeroed,
        "The first update is right, but the second one still contains the gradients of the first. "
        "Clear them once, before the first micro-batch.",
    ),
    (
        _zeroed_inside,
        "Only the last micro-batch counts, because zero_grad() throws the earlier gradients away. Call it once, "
        "before the loop.",
    ),
    (
        _step_inside,
        "The weights change after every micro-batch. That is training with a small batch: call step() once, "
        "after the loop.",
    ),
    (
        _divided_by_images,
        "You divide by the number of images, but each loss is already a mean over the images of its micro-batch. "
        "Divide by the number of micro-batches.",
    ),
    (
        _cut_with_split,
        "You make too many micro-batches: split(n) cuts a tensor into pieces of n images, chunk(n) into n pieces.",
    ),
)


@dataclass(frozen=True)
class _Run:
    """The weights after some updates, and how many images and graphs of activations were in memory at once."""

    weights: Tensor
    images_at_once: int
    graphs_at_once: int


def accumulate_hint(accumulate: object) -> str | None:
    """Return the hint for a function that is to learn from micro-batches what one large batch teaches."""
    if not callable(accumulate):
        return f"accumulate is a function; you wrote {accumulate!r}."
    for micro_batches in (4, 3):
        hint = _hint_for(accumulate, micro_batches)
        if hint is not None:
            return hint if micro_batches == 4 else f"It works with 4 micro-batches, but not with 3. {hint}"
    return None


def _hint_for(accumulate: Update, micro_batches: int) -> str | None:
    before, right = _first_weights(), _run(one_large_batch, 1).weights
    moved = (right - before).norm()
    run = _run(accumulate, micro_batches)

    def is_near(weights: Tensor) -> bool:
        return bool((run.weights - weights).norm() < NEAR * moved)

    if is_near(before):
        return "The weights did not change: each loss needs backward(), and the optimiser needs one step() at the end."
    if is_near(right):
        return _memory_hint(run, micro_batches)
    for mistake, hint in _MISTAKES:
        if is_near(_run(mistake, micro_batches).weights):
            return hint
    apart = (run.weights - right).norm() / moved
    return (
        f"After {UPDATES} updates your weights differ from those of the large batch by {apart:.0%} of the distance "
        "that these moved. Clear the gradients, add up each micro-batch's share, and step once."
    )


def _memory_hint(run: _Run, micro_batches: int) -> str | None:
    if run.images_at_once > IMAGES // micro_batches:
        return (
            f"The weights are right, but {run.images_at_once} images went through the network at once. Only "
            f"{IMAGES // micro_batches}, one micro-batch, would fit into memory."
        )
    if run.graphs_at_once > 1:
        return (
            f"The weights are right, but the activations of {run.graphs_at_once} micro-batches wait in memory for "
            "their backward(). Call it for each micro-batch, before the next one goes through the network."
        )
    return None


def _first_network() -> WithLoss:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return WithLoss(SmallNetwork(width=4))


def _first_weights() -> Tensor:
    return nn.utils.parameters_to_vector(_first_network().parameters()).detach()


def _run(update: Update, micro_batches: int) -> _Run:
    """Run ``update`` on the same network and images, however often it is called."""
    network, seen, waiting, most = _first_network(), [0], [0], [0]

    def begin(_: nn.Module, given: Any, named: Any) -> None:
        seen.append(len(given[0] if given else named["images"]))

    def end(_: nn.Module, given: Any, returned: Any) -> None:
        loss = returned[1]
        if not loss.requires_grad:
            return
        waiting[0] += 1
        most[0] = max(most[0], waiting[0])
        # The gradient of a loss arrives when the backward pass through its graph begins.
        loss.register_hook(lambda gradient: waiting.__setitem__(0, waiting[0] - 1))

    network.register_forward_pre_hook(begin, with_kwargs=True)
    network.register_forward_hook(end)
    optimiser = torch.optim.SGD(network.parameters(), lr=RATE)
    draw = torch.Generator().manual_seed(2)
    for _ in range(UPDATES):
        images, labels = torch.randn(IMAGES, 3, 32, 32, generator=draw), torch.randint(10, (IMAGES,), generator=draw)
        update(network, optimiser, images, labels, micro_batches)
    return _Run(nn.utils.parameters_to_vector(network.parameters()).detach(), max(seen), most[0])


def whole_number_hint(name: str, answer: object) -> str | None:
    """Return a hint when ``answer`` is not a whole number of at least 1."""
    number = as_number(answer)
    if number is None or number < 1 or not number.is_integer():
        return f"{name} is a whole number of at least 1; you wrote {answer!r}."
    return None


def plan_hint(micro_batch: Any, accumulation: Any) -> str | None:
    """Return the hint for a plan of 512 images an update over four IPUs that are busy 80 % of the time."""
    wrong = whole_number_hint("micro_batch", micro_batch) or whole_number_hint("accumulation", accumulation)
    if wrong:
        return wrong
    micro_batch, accumulation = int(micro_batch), int(accumulation)
    if (micro_batch, accumulation) == PLAN:
        return None
    images = micro_batch * accumulation
    if accumulation < 2 * STAGES - 1:
        return f"PopTorch refuses an accumulation of {accumulation}: four stages need at least 2 x 4 - 1 = 7."
    if images != GLOBAL_BATCH:
        return f"An update would take {micro_batch} x {accumulation} = {images:,} images instead of {GLOBAL_BATCH}."
    if (accumulation, micro_batch) == PLAN:
        return (
            "You counted steps: 32 / (32 + 6) is 84.2 %, and 16 / (16 + 6) only 72.7 %. The exercise asks for the "
            "share of the time, so a larger micro-batch is enough."
        )
    busy = busy_by_time(STAGES, accumulation)
    if busy < LEAST_BUSY:
        return (
            f"{accumulation} / ({accumulation} + 3) is {busy:.1%} of the time, which is below 80 %. (Counted in steps "
            f"it is even less, {busy_by_steps(STAGES, accumulation):.1%}.)"
        )
    return f"The IPUs are busy {busy:.1%} of the time, but a larger micro-batch is enough, too."


def enough_hint(smallest: Any, using: ModelledModule) -> str | None:
    """Return the hint for the smallest accumulation with 95 % of the highest rate of the program ``using``."""
    wrong = whole_number_hint("smallest", smallest)
    if wrong:
        return wrong
    smallest = int(smallest)
    if smallest < 3:
        return f"PopTorch refuses an accumulation of {smallest} on two IPUs: the smallest is 2 x 2 - 1 = 3."
    share = share_of_highest(using, smallest)
    if share < LEAST_SHARE:
        return f"With {smallest}, the modelled IPUs reach {share:.1%} of their highest rate, which is below 95 %."
    if smallest == 3 or share_of_highest(using, smallest - 1) < LEAST_SHARE:
        return None
    if smallest == BY_COUNTING_STEPS:
        return "38 / (38 + 2) is 95 % of the steps, but the steps are not equally long. Move the slider."
    if smallest == BY_TIME:
        return "19 / (19 + 1) is 95 % for a pipeline of equal stages. These two are not equal: move the slider."
    return f"{smallest} is enough ({share:.1%}), but so is a smaller accumulation."


def highest_rate(program: ModelledModule) -> float:
    """Return the images per second that the modelled IPUs approach with more and more accumulation."""
    return program.profile(gradient_accumulation=ENDLESS).device_samples_per_second


def share_of_highest(program: ModelledModule, accumulation: int) -> float:
    """Return the modelled rate with ``accumulation`` as a share of the highest rate."""
    return program.profile(gradient_accumulation=accumulation).device_samples_per_second / highest_rate(program)


ACCUMULATE = Exercise(
    names=("accumulate",),
    find_hint=accumulate_hint,
    praise="After two updates the weights equal those of the large batch, with 4 micro-batches and with 3.",
)
BUSY = Exercise(
    names=("micro_batch", "accumulation"),
    find_hint=plan_hint,
    praise="32 x 16 = 512 images, and 16 / (16 + 3) is 84.2 % of the time. With 64, the next larger micro-batch, it "
    "would be 72.7 %.",
)
ENOUGH = Exercise(
    names=("smallest",),
    find_hint=enough_hint,
    praise="More accumulation would gain less than 5 %, and it would cost weight updates.",
)
SUM = Numbers(
    Number(
        "accumulation",
        16,
        wrong={
            8: "8 micro-batches of 32 images are 256. The update took 64 x 8 = 512 images and should keep them.",
            4: "A smaller micro-batch needs more of them, not fewer: the update should still take 512 images.",
            512: "512 is the number of images in an update. Accumulation counts micro-batches, of 32 images here.",
        },
        otherwise="An update took 64 x 8 = 512 images. How many micro-batches of 32 is that?",
    ),
    Number(
        "learning_rate",
        0.2 / 16,
        wrong={
            0.2: "The accumulation is right, but SGD would take steps 16 times as long: Sum does not divide.",
            0.2 * 16: "That multiplies the rate. Sum already makes the gradient larger, so the rate has to shrink.",
            0.2 / 8: "0.025 is right for 8 micro-batches. Now 16 gradients are added.",
            0.2 / 512: "You divide by all images. Each loss is already a mean over its images, so only the 16 "
            "micro-batches are added.",
        },
        otherwise="With SGD, the sum of 16 gradients is a step 16 times as long. Which rate makes up for that?",
        tolerance=1e-6,
    ),
    praise="16 micro-batches of 32 images, and their sum is 16 times their mean: 0.2 / 16 = 0.0125.",
)
