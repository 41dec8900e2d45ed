"""Lesson 01: gradients and their sizes, small trainings, what is shown, and the checks of its exercises."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from train_support import profile as profile_with

import poptorch
from ipu_course.lessons.half_precision.camera import CameraDigits
from ipu_course.lessons.half_precision.diagnosis import layers_hint, repair_hint
from ipu_course.lessons.half_precision.exercises import WINDOW
from ipu_course.lessons.half_precision.explorer import LARGEST_HALF, LOSS_SCALING, scaling_view
from ipu_course.lessons.half_precision.gradient_sizes import KEPT, gradient_sizes, share_below
from ipu_course.lessons.half_precision.steady_updates import SteadyUpdates
from ipu_course.lessons.half_precision.trial import Trial, try_out
from ipu_course.lessons.half_precision.views import fit_row
from ipu_course.models import Digits, digit_layers

HALF, SINGLE = torch.float16, torch.float32


def quiet_options() -> poptorch.Options:
    return poptorch.Options().showCompilationProgressBar(False)


# --- sizes of gradients


def test_gradients_are_those_of_autograd() -> None:
    model, images, labels = nn.Linear(4, 3), torch.randn(2, 4), torch.tensor([0, 2])
    sizes = gradient_sizes(model, images, labels, batch_size=2)
    logits = model(images)
    # The gradient of mean cross-entropy with respect to the logits is (softmax - one-hot) / batch.
    wanted = ((logits.softmax(1) - nn.functional.one_hot(labels, 3)) / 2).abs().flatten().detach()
    assert sizes["activations"].tolist() == pytest.approx([float(wanted.max()), float(wanted[0])], rel=1e-5)


def test_fewer_images_have_gradients_as_small_as_in_a_whole_batch() -> None:
    model, images, labels = nn.Linear(4, 3), torch.randn(2, 4), torch.tensor([0, 2])
    small, large = (gradient_sizes(model, images, labels, batch_size=size) for size in (64, 2))
    for kind in ("activations", "weights"):
        torch.testing.assert_close(32 * small[kind], large[kind])


def test_the_largest_gradient_is_always_there_and_few_of_the_others() -> None:
    model = nn.Linear(100, 50, bias=False)
    images, labels = torch.randn(8, 100), torch.arange(8)
    sizes = gradient_sizes(model, images, labels, batch_size=8)["weights"]
    nn.functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
    assert model.weight.grad is not None
    assert float(sizes.max()) == pytest.approx(float(model.weight.grad.abs().max()), rel=1e-4)
    assert len(sizes) == 1 + math.ceil(100 * 50 / KEPT)


def test_a_model_is_left_as_it_was() -> None:
    model = digit_layers()
    gradient_sizes(model, torch.randn(2, 1, 28, 28), torch.tensor([1, 2]), batch_size=2)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(layer._forward_hooks for layer in model)


@given(st.lists(st.integers(-40, 20), min_size=1, max_size=30), st.integers(-40, 20))
def test_the_share_below_a_power_of_two_is_counted_without_zeros(exponents: list[int], limit: int) -> None:
    sizes = torch.tensor([2.0**exponent for exponent in exponents] + [0.0, 0.0])
    assert share_below(sizes, limit) == pytest.approx(sum(e < limit for e in exponents) / len(exponents))


# --- small trainings


def trial(data: torch.dtype, model: torch.dtype, loss_weight: float = 1.0, **adamw: Any) -> Trial:
    options = quiet_options().deviceIterations(10).outputMode(poptorch.OutputMode.All)
    network = Digits(loss_weight).to(model)
    optimiser = poptorch.optim.AdamW(network.parameters(), lr=0.004, **adamw)
    return try_out(poptorch.trainingModel(network, options, optimiser), network, data, images_per_call=400)


def test_digits_start_with_the_same_weights_and_leave_the_random_numbers_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first, second = digit_layers(), digit_layers()
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters()))


def test_the_loss_weight_scales_what_is_minimised_and_nothing_else() -> None:
    images, labels = torch.randn(4, 1, 28, 28), torch.arange(4)
    (logits, loss), (same, half_of_it) = Digits()(images, labels), Digits(0.5)(images, labels)
    assert torch.equal(logits, same)
    assert half_of_it.item() == pytest.approx(loss.item() / 2)


def test_half_precision_learns_the_digits_as_single_precision_does() -> None:
    for data, model in ((SINGLE, SINGLE), (HALF, HALF)):
        found = trial(data, model)
        assert found.finite
        assert found.losses == sorted(found.losses, reverse=True)
        assert found.accuracy > 90


@pytest.mark.parametrize("model", [SINGLE, HALF], ids=["16.32", "16.16"])
def test_a_small_loss_underflows_in_half_precision_until_it_is_scaled(model: torch.dtype) -> None:
    tiny = 2.0**-18
    assert trial(SINGLE, SINGLE, tiny).accuracy > 90
    stuck = trial(HALF, model, tiny)
    # Ten classes, nothing learned: ln 10 = 2.303.
    assert stuck.losses[-1] == pytest.approx(math.log(10), abs=0.15)
    assert trial(HALF, model, tiny, loss_scaling=1 / tiny).accuracy > 90


def test_second_moments_in_half_precision_ruin_the_training() -> None:
    ruined = trial(HALF, HALF, loss_scaling=1000, second_order_momentum_accum_type=HALF)
    assert ruined.finite
    assert max(ruined.losses) > 10_000  # as the lesson's text says
    assert trial(HALF, HALF, loss_scaling=1000, first_order_momentum_accum_type=HALF).accuracy > 90


@pytest.mark.parametrize(("exponent", "learns"), [(10, True), (18, True), (24, False)])
def test_too_large_a_scaling_is_nan_on_a_gpu_and_numbers_on_an_ipu(
    exponent: int, learns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_ipu = trial(HALF, HALF, loss_scaling=2.0**exponent)
    assert on_ipu.finite
    assert (on_ipu.accuracy > 90) == learns
    monkeypatch.setenv("IPU_MODEL_HALF_OVERFLOW", "infinity")
    assert trial(HALF, HALF, loss_scaling=2.0**exponent).finite == (exponent == 10)


@pytest.mark.parametrize(
    ("dtype", "stochastic", "mean"), [(SINGLE, False, 1.01), (HALF, False, 1.0), (HALF, True, 1.01)]
)
def test_small_updates_survive_in_fp32_or_when_rounded_stochastically(
    dtype: torch.dtype, stochastic: bool, mean: float
) -> None:
    options = quiet_options().deviceIterations(101).outputMode(poptorch.OutputMode.All).randomSeed(1)
    options.Precision.enableStochasticRounding(stochastic)
    model = SteadyUpdates(dtype)
    means, _ = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=1e-4))(
        torch.ones(101, 1)
    )
    # 100 updates of 0.0001. Stochastic: a weight deviates by at most sqrt(100) x 2^-10 / 2, the mean of 1,000 weights
    # by 0.00016 (one sigma), so that 0.001 is six of them.
    assert float(means[-1]) == pytest.approx(mean, abs=1e-3 if stochastic else 1e-5)


# --- what is shown


@pytest.mark.parametrize(("share", "said"), [(0.5, "yes"), (0.99, "yes"), (1.0, "too close to call"), (2.0, "no")])
def test_the_verdict_on_memory_says_when_the_model_cannot_tell(share: float, said: str) -> None:
    """The engine cannot tell from just below a full tile to a little more."""
    assert fit_row("16.16", profile_with(tile_kib=share * 624))["fits (modelled)"] == said


# From 2^4 on the small activation gradients reach 2^-14; from 2^12 on the large weight gradient is 2^16 > 65,504.
GRADIENTS = {"activations": torch.full((1000,), 2.0**-18), "weights": torch.tensor([2.0**4, 0.0])}


@pytest.mark.parametrize("state", list(LOSS_SCALING.states()), ids=str)
def test_the_explorer_s_caption_says_which_end_is_out_of_range(state: dict[str, int]) -> None:
    view = scaling_view(GRADIENTS, **state)
    exponent = state["exponent"]
    said = "overflow" if exponent >= 12 else "fit into" if exponent >= 4 else "loses digits"
    assert said in view.takeaway
    assert view.rows[0]["largest gradient"] == f"about {float(f'{2.0 ** (4 + exponent):.1g}'):,.0f}"


# --- exercises


def test_the_window_is_that_of_the_gradients_that_the_lesson_shows() -> None:
    import torchvision

    from ipu_course.datasets import colour_shapes

    torch.manual_seed(0)
    network = torchvision.models.resnet101()
    sample = colour_shapes(train=True, images=8)
    images = nn.functional.interpolate(sample.images, size=64)
    sizes = gradient_sizes(network, images, sample.labels, batch_size=64)
    good = [
        exponent
        for exponent in range(17)
        if share_below(2.0**exponent * sizes["activations"], -14) < 0.01
        and 2.0**exponent * max(float(each.max()) for each in sizes.values()) <= LARGEST_HALF
    ]
    assert WINDOW.find_hint(good[0], good[-1]) is None
    below = share_below(2.0 ** (good[0] - 1) * sizes["activations"], -14)
    assert f"{100 * below:.1f} % of the activation gradients" in str(WINDOW.find_hint(good[0] - 1, good[-1]))


def test_the_camera_s_network_learns_in_fp32_only_and_a_scaled_loss_does_not_help() -> None:
    def accuracy(network: nn.Module, data: torch.dtype, **adamw: Any) -> float:
        options = quiet_options().deviceIterations(10).outputMode(poptorch.OutputMode.All)
        optimiser = poptorch.optim.AdamW(network.parameters(), lr=0.004, **adamw)
        return try_out(poptorch.trainingModel(network, options, optimiser), network, data, images_per_call=400).accuracy

    assert accuracy(CameraDigits(), SINGLE) > 85
    assert accuracy(CameraDigits().half(), HALF) < 60
    assert accuracy(CameraDigits().half(), HALF, loss_scaling=1024.0) < 60


def right_layers(model: nn.Module, images: Tensor) -> list[str]:
    """Follow each layer by hooks, as a learner does."""
    found: list[str] = []
    handles = []
    for name, layer in model.named_modules():

        def hook(layer: nn.Module, inputs: object, output: Tensor, name: str = name) -> None:
            if output.abs().max() > LARGEST_HALF:
                found.append(name)

        if not list(layer.children()):
            handles.append(layer.register_forward_hook(hook))
    model(images)
    for handle in handles:
        handle.remove()
    return found


def layers_of_a_model_made_half(model: nn.Module, images: Tensor) -> list[str]:
    names = right_layers(model, images)
    model.half()
    return names


def test_a_diagnosis_gets_a_hint_only_when_it_is_wrong_or_leaves_traces() -> None:
    assert layers_hint(right_layers) is None
    assert "do not call half()" in str(layers_hint(layers_of_a_model_made_half))
    assert "should be a function" in str(layers_hint(["energy", "pool"]))


class InFloat32(nn.Module):
    """A right answer to exercise 3."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.float()).half()  # type: ignore[no-any-return]  # nn.Module's call is Any


def test_a_wrapper_that_computes_in_float32_is_right_and_a_function_is_not() -> None:
    assert repair_hint(InFloat32) is None
    assert "derives from nn.Module" in str(repair_hint(lambda x: x))
