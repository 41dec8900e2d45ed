"""The exercises on device iterations: a schedule in updates, a mean from a sum, results in time, and a good call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Sequence

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import poptorch
from ipu_course.exercises import Exercise, Number, Numbers, as_number
from ipu_course.models import SmallNetwork, WithLoss

if TYPE_CHECKING:
    from ipu_course.engine import ModelledModule

Train = Callable[[nn.Module, poptorch.Options, poptorch.DataLoader], Any]

UPDATES, ACCUMULATION, MICRO_BATCH = 8, 2, 8
FIRST_RATE, UPDATES_AT_A_RATE = 0.02, 4
NEAR_WEIGHTS = 1e-3  # of the way that the weights go
NEAR_LOSS = 1e-3  # of the right value: fp32 sums in another order differ far less

SUMMED_ITERATIONS, SUMMED_ACCUMULATION, SUMMED_IMAGES = 4, 2, 16
SUMMED_LOSSES = SUMMED_ITERATIONS * SUMMED_ACCUMULATION

MOST_SECONDS = 0.0045
CALL_SECONDS = 0.001
IMAGE_SECONDS = 800e-6
ITERATIONS = (1, 2, 4, 8, 16, 32, 64, 128)
NEAR_GAIN = 0.05

# What learners divide the sum by, and what they take it for.
_DIVISORS = (
    (1, "That is the sum itself: it grows with the number of micro-batches in a call."),
    (SUMMED_ITERATIONS, "You divided by the device iterations. Each of them adds the losses of 2 micro-batches."),
    (SUMMED_ACCUMULATION, "You divided by the accumulation. The loop runs 4 times, and adds 2 losses each time."),
    (
        SUMMED_IMAGES * SUMMED_LOSSES,
        "You divided by the images. Each micro-batch's loss is already a mean over its images.",
    ),
    (SUMMED_IMAGES, "You divided by the images of a micro-batch. Its loss is already a mean over them."),
)


def rate_at(update: int) -> float:
    """Return the learning rate of an update, counted from 0: it halves after every 4 updates."""
    return FIRST_RATE * 0.5 ** (update // UPDATES_AT_A_RATE)


def schedule_hint(train: object) -> str | None:
    """Return the hint for a training function that is to follow ``rate_at``, whatever the device iterations."""
    if not callable(train):
        return f"train is a function; you wrote {train!r}."
    for iterations in (1, 2, 4):
        hint = _hint_with(train, iterations)
        if hint is not None:
            return f"With {iterations} device iteration{'s' if iterations > 1 else ''}: {hint}"
    return None


def _hint_with(train: Train, iterations: int) -> str | None:
    weights = _trained(train, iterations)
    before, right = _plain([]), _plain([rate_at(update) for update in range(UPDATES)])

    def is_near(other: Tensor) -> bool:
        return bool((weights - other).norm() < NEAR_WEIGHTS * (right - before).norm())

    if is_near(right):
        return None
    if is_near(before):
        return "the weights did not change. Call the model for every batch, and copyWeightsToHost() at the end."
    if iterations > 1 and is_near(_plain([rate_at(update // iterations) for update in range(UPDATES)])):
        return (
            f"your schedule counts calls, and a call makes {iterations} updates. Count the updates instead: "
            "options.device_iterations is the number of updates in a call."
        )
    if is_near(_plain([rate_at(0)] * UPDATES)):
        return "the rate never changed. Give the model a new optimiser with setOptimizer before a call."
    late = [rate_at(max(0, update // iterations * iterations - iterations)) for update in range(UPDATES)]
    if is_near(_plain(late)):
        return "the rate changes one call too late. Set the rate of a call's updates before the call."
    early = [rate_at(update // iterations * iterations + iterations) for update in range(UPDATES)]
    if is_near(_plain(early)):
        return "the rate changes one call too early. Count the updates after the call that made them."
    return "the weights differ from plain PyTorch. Before each call, set rate_at(number of updates made so far)."


def _data() -> TensorDataset:
    draw = torch.Generator().manual_seed(3)
    images = torch.randn(UPDATES * ACCUMULATION * MICRO_BATCH, 3, 32, 32, generator=draw)
    return TensorDataset(images, torch.randint(10, (len(images),), generator=draw))


def _network() -> WithLoss:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return WithLoss(SmallNetwork(width=4))


def _weights(network: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(network.parameters()).detach().clone()


def _plain(rates: Sequence[float]) -> Tensor:
    """Return the weights after one update in plain PyTorch with each of ``rates``."""
    network, size = _network(), ACCUMULATION * MICRO_BATCH
    images, labels = _data().tensors
    for rate, part, right in zip(rates, images.split(size), labels.split(size)):
        network.zero_grad()
        network(part, right)[1].backward()
        torch.optim.SGD(network.parameters(), lr=rate).step()
    return _weights(network)


def _trained(train: Train, iterations: int) -> Tensor:
    """Return the weights after the learner's function has trained, in calls of some ``iterations``."""
    network, options = _network(), poptorch.Options().deviceIterations(iterations)
    options.showCompilationProgressBar(False)
    options.Training.gradientAccumulation(ACCUMULATION)
    train(network, options, poptorch.DataLoader(options, _data(), batch_size=MICRO_BATCH))
    return _weights(network)


def mean_hint(mean_loss: Any, using: Tensor) -> str | None:
    """Return the hint for the mean of a call's losses; ``using`` are all of them."""
    if isinstance(mean_loss, Tensor) and mean_loss.numel() != 1:
        return f"mean_loss is one number; yours has the shape {list(mean_loss.shape)}."
    answer = as_number(mean_loss.detach() if isinstance(mean_loss, Tensor) else mean_loss)
    if answer is None:
        return f"mean_loss is a number; you wrote {mean_loss!r}."
    right = using.float().mean().item()
    if abs(answer / right - 1) < NEAR_LOSS:
        return None
    for divisor, hint in _DIVISORS:
        if abs(answer / (right * SUMMED_LOSSES / divisor) - 1) < NEAR_LOSS:
            return hint
    return "Start from summed_loss, and divide it by the number of losses that were added."


def in_time_hint(iterations: Any, gain: Any, using: ModelledModule) -> str | None:
    """Return the hint for results within 4.5 ms, and for what 128 iterations gain where loading is slow."""
    chosen, factor = as_number(iterations), as_number(gain)
    if chosen is None or chosen not in ITERATIONS:
        return f"iterations is one of the slider's values, 1 to {ITERATIONS[-1]}; you wrote {iterations!r}."
    if factor is None:
        return f"gain is a number, such as 2.5; you wrote {gain!r}."
    return _iterations_hint(int(chosen), using) or _gain_hint(factor, using)


def _iterations_hint(chosen: int, program: ModelledModule) -> str | None:
    alone = {each: program.profile(device_iterations=each).call_seconds for each in ITERATIONS}
    right = max(each for each, seconds in alone.items() if seconds + CALL_SECONDS <= MOST_SECONDS)
    if chosen == right:
        return None
    if chosen < right:
        return f"{chosen} device iterations are in time, but more would be, too."
    if alone[chosen] <= MOST_SECONDS:
        return f"{chosen} would be in time without the host's 1 ms for each call. Did you set that slider?"
    return f"With {chosen} the results come after {1e3 * (alone[chosen] + CALL_SECONDS):.1f} ms: too late."


def _gain_hint(factor: float, program: ModelledModule) -> str | None:
    rates = {}
    for image_seconds in (0.0, IMAGE_SECONDS):
        rates[image_seconds] = [
            program.profile(device_iterations=each).samples_per_call
            / (
                program.profile(device_iterations=each).call_seconds
                + image_seconds * program.profile(device_iterations=each).samples_per_call
            )
            for each in (1, ITERATIONS[-1])
        ]
    one, many = rates[IMAGE_SECONDS]
    if abs(factor - many / one) < NEAR_GAIN:
        return None
    free_one, free_many = rates[0.0]
    if abs(factor / (free_many / free_one) - 1) < NEAR_GAIN:
        return "iterations is right. That is the gain without loading: set 800 µs for each image."
    return (
        "iterations is right. For gain, set 800 µs for each image and 0 ms for each call, read the images per second "
        "with 1 and with 128 device iterations, and divide."
    )


SCHEDULE = Exercise(
    names=("train",),
    find_hint=schedule_hint,
    praise="With 1, 2 and 4 device iterations the weights equal those of plain PyTorch with the same schedule.",
)
MEAN_LOSS = Exercise(
    names=("mean_loss",),
    find_hint=mean_hint,
    praise="4 x 2 losses were added, and each was a mean over its 16 images.",
)
IN_TIME = Exercise(
    names=("iterations", "gain"),
    find_hint=in_time_hint,
    praise="Twice as many iterations would be late. And where the host needs 800 µs for each image, they gain next to "
    "nothing.",
)
GOOD_CALL = Numbers(
    Number(
        "iterations",
        12,
        wrong={
            16: "A call would make 16 updates, and the host can change the rate only between calls: never after 12.",
            10: "A call would make 10 updates, and the host can change the rate only between calls: never after 12.",
            8: "A call would make 8 updates, and the host can change the rate only between calls: never after 12.",
            1: "1 works (336 images are left out), but a larger number does, too.",
            2: "2 works (848 images are left out), but a larger number does, too.",
            3: "3 works (848 images are left out), but a larger number does, too.",
            4: "4 works (848 images are left out), but a larger number does, too.",
            6: "6 works (848 images are left out), but a larger number does, too.",
            97: "One call would take the whole epoch. At most 16 are allowed, and the rate has to change in between.",
            12 * 512: "That is the number of images in a call. How many updates are they?",
        },
        otherwise="At most 16 are allowed, and the updates of a call must divide 12. Then look at the images left out.",
    ),
    praise="12 updates in a call: the rate changes between two calls, and 848 of 50,000 images are left out.",
)
