"""Lesson 01: gradients and their sizes, small trainings, bars of memory, and the checks of its exercises."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from torch import Tensor, nn
from train_support import profile as profile_with

import poptorch
from ipu_course import engine
from ipu_course.digit_training import Digits, Trial, digit_layers, try_out
from ipu_course.lessons.half_precision.checks import check_loss_scaling, check_norm
from ipu_course.lessons.half_precision.gradient_sizes import KEPT, gradient_sizes, share_below
from ipu_course.lessons.half_precision.steady_updates import SteadyUpdates
from ipu_course.lessons.half_precision.tile_memory_figure import LOOKS, tile_memory_figure
from ipu_course.lessons.half_precision.views import (
    PARTS_IN_ORDER,
    memory_cells,
    memory_figure,
    show_rates,
    show_tile_memory,
    tile_parts,
)
from ipu_model import Profile

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
    assert ruined.losses[-1] > 1000
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


# --- what is shown of profiles


@pytest.fixture(scope="module")
def profile() -> Profile:
    network = Digits()
    options = quiet_options()
    options.Training.gradientAccumulation(2)
    inputs = (torch.zeros(8, 1, 28, 28), torch.zeros(8, dtype=torch.int64))
    found = engine.profile_module(network, inputs, options, poptorch.optim.AdamW(network.parameters()))
    assert found is not None
    return found


def test_the_parts_of_a_tile_add_up_to_the_tile(profile: Profile) -> None:
    (ipu,) = profile.memory
    parts = tile_parts(ipu)
    assert tuple(parts) == PARTS_IN_ORDER
    assert 1024 * sum(parts.values()) == pytest.approx(ipu.max_tile_bytes)
    sizes = ipu.bytes_by_category
    state = sizes["optimiser state"] + sizes["gradient accumulators"]
    assert parts["optimiser and accumulators"] == pytest.approx(state / 1024)


def test_the_bars_of_memory_are_as_long_as_their_parts() -> None:
    drawn = tile_memory_figure({"A": {"x": 100.0, "y": 50.0}, "B": {"x": 30.0, "y": 0.0}}, 120.0, "Title")
    axes = drawn.axes[0]
    assert [patch.get_width() for patch in axes.patches] == [100.0, 30.0, 50.0, 0.0]
    texts = [text.get_text() for text in axes.texts]
    assert {"150", "30", " a tile has 120 KiB"} <= set(texts)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["A", "B"]
    assert axes.get_xlim()[1] > 150


def test_parts_differ_in_colour_and_pattern() -> None:
    looks = {(to_hex(look["facecolor"]), look.get("hatch", "")) for look in LOOKS}
    assert len(looks) == len(LOOKS) == len(PARTS_IN_ORDER)
    with pytest.raises(ValueError, match="can be told apart"):
        tile_memory_figure({"A": {str(part): 1.0 for part in range(6)}}, 10.0, "Title")


def test_each_ipu_of_each_program_has_its_bar(profile: Profile) -> None:
    labels = memory_figure({"one": profile, "two": profile}).axes[0].get_yticklabels()
    assert [label.get_text() for label in labels] == ["one, IPU 0", "two, IPU 0"]


@pytest.mark.parametrize(("share", "said"), [(0.5, "yes"), (0.99, "yes"), (1.0, "too close to call"), (2.0, "no")])
def test_the_verdict_on_memory_says_when_the_model_cannot_tell(share: float, said: str) -> None:
    """The engine cannot tell from just below a full tile to a little more."""
    assert memory_cells(profile_with(tile_kib=share * 624))["fits"] == said


@pytest.mark.parametrize("view", [show_tile_memory, show_rates])
def test_without_an_engine_one_line_says_so(view: Any, capsys: pytest.CaptureFixture[str]) -> None:
    view({"16.16": None})
    assert capsys.readouterr().out.strip() == engine.NOT_HERE


# --- exercises

# 0.1 % of the activation gradients stay below 2^-14 for any scaling allowed, and one weight gradient is 2^4.
GRADIENTS = {
    "activations": torch.cat([torch.full((999,), 2.0**-18), torch.tensor([2.0**-40])]),
    "weights": torch.tensor([2.0**4, 0.0]),
}


@given(st.integers(-10, 30))
def test_a_power_of_two_is_right_between_both_ends_of_the_range(exponent: int) -> None:
    # From 2^4 on the small ones reach 2^-14; from 2^12 on the large one is 2^16 > 65,504.
    assert (said_of_scaling(2.0**exponent) == "correct") == (4 <= exponent < 12)


@given(st.one_of(st.floats(), st.integers(), st.text(max_size=3), st.none(), st.booleans()))
def test_any_scaling_gets_a_verdict(value: object) -> None:
    assert said_of_scaling(value) in {"correct", "not yet"}


def said_of_scaling(value: object) -> str:
    return verdict_of(lambda: check_loss_scaling(value, GRADIENTS))


def verdict_of(action: Any) -> str:
    import contextlib
    import io

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        action()
    return said.getvalue().partition(": ")[2].partition(".")[0].strip()


def narrow(x: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()


def wide(x: Tensor) -> Tensor:
    return narrow(x.float()).half()


def test_the_planted_fault_is_one_and_silent() -> None:
    class Norm(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return narrow(x)

    rows = 1000 * torch.ones(2, 8, dtype=HALF)
    result = poptorch.inferenceModel(Norm(), quiet_options())(rows)
    clipped = 1000 / math.sqrt(65504)  # the square, a million, is clipped: 3.9 instead of 1
    torch.testing.assert_close(result, torch.full((2, 8), clipped, dtype=HALF))
    assert torch.equal(wide(rows), torch.ones(2, 8, dtype=HALF))


@pytest.mark.parametrize(
    ("norm", "said"),
    [
        (wide, "correct"),
        (narrow, "not yet"),
        (lambda x: ..., "not attempted yet"),
        (lambda x: x.no_such_method(), "not yet"),
        (lambda x: None, "not yet"),
        (lambda x: x, "not yet"),
        (3, "not yet"),
    ],
)
def test_a_norm_gets_a_verdict_whatever_it_does(norm: Any, said: str) -> None:
    assert verdict_of(lambda: check_norm(norm)) == said
