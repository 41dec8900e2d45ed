"""The update formulas (poptorch-optim.md, section 4) against PyTorch's optimisers in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optimiser_support import (
    assert_close,
    random_gradients,
    random_weights,
    run,
    run_torch,
    spec_of,
    updater_of,
)
from torch import Tensor

from ipu_model.optimiser import Hyper

STEPS = 4
RATE = st.floats(1e-4, 0.2)
MOMENTUM = st.sampled_from([0.0, 0.5, 0.9])
DECAY = st.sampled_from([0.0, 1e-3, 0.1])
LOSS_SCALING = st.sampled_from([1.0, 128.0, 0.5])
SCALE = st.sampled_from([1.0, 1.0 / 3.0, 0.25])
# eps this large keeps the quotient of two tiny numbers from magnifying float32 rounding.
EPS = st.sampled_from([1e-3, 1e-2])
BETAS = st.sampled_from([(0.9, 0.999), (0.5, 0.9), (0.0, 0.99)])
FEW = settings(max_examples=40, deadline=None)


def hand_over(family: str, hyper: Hyper, loss_scaling: float, scale: float, **options: Any) -> dict[str, Tensor]:
    """Run the updater on the gradients of seed 1 as it gets them: a sum, multiplied by the loss scaling."""
    accumulates = options.pop("accumulates", False)
    spec = spec_of(family, hyper, loss_scaling=loss_scaling, **options)
    gradients = random_gradients(1, STEPS)
    return run(spec, gradients, scale=scale, factor=loss_scaling / scale, accumulates=accumulates)


@FEW
@given(RATE, MOMENTUM, DECAY, st.booleans(), st.booleans(), st.booleans(), LOSS_SCALING, SCALE)
def test_sgd_without_dampening_equals_pytorchs(
    lr: float,
    mm: float,
    wd: float,
    nesterov: bool,
    combined: bool,
    accumulates: bool,
    ls: float,
    scale: float,
) -> None:
    nesterov = nesterov and mm > 0
    hyper = Hyper(lr=lr, momentum=mm, weight_decay=wd, nesterov=nesterov, velocity_scaling=ls if combined else 1.0)
    actual = hand_over("SGD1" if combined else "SGD2", hyper, ls, scale, accumulates=accumulates)
    expected = run_torch(lambda p: torch.optim.SGD(p, lr, mm, 0.0, wd, nesterov), random_gradients(1, STEPS))
    assert_close(actual, expected)


def dampened_sgd(lr: float, mm: float, dm: float, wd: float) -> dict[str, Tensor]:
    """Section 4.1's separate variant, literally, in float64."""
    weights = {name: w.double() for name, w in random_weights(0).items()}
    velocities = {name: torch.zeros_like(w) for name, w in weights.items()}
    for step in random_gradients(1, STEPS):
        for name, w in weights.items():
            v = velocities[name]
            v.copy_(mm * v + (1 - dm) * (step[name].double() + wd * w))
            w -= lr * v
    return weights


@FEW
@given(RATE, MOMENTUM, st.sampled_from([0.0, 0.3, 1.0]), DECAY, st.booleans(), st.booleans(), LOSS_SCALING)
def test_dampening_applies_from_the_first_step_and_without_momentum_too(
    lr: float, mm: float, dm: float, wd: float, combined: bool, accumulates: bool, ls: float
) -> None:
    hyper = Hyper(lr=lr, momentum=mm, dampening=dm, weight_decay=wd, velocity_scaling=4.0 if combined else 1.0)
    actual = hand_over("SGD1" if combined else "SGD2", hyper, ls, 1.0, accumulates=accumulates)
    assert_close(actual, dampened_sgd(lr, mm, dm, wd))


@FEW
@given(RATE, BETAS, EPS, DECAY, LOSS_SCALING, SCALE, st.sampled_from(["ADAM", "ADAMW", "ADAMW_NO_BIAS"]))
def test_adam_and_adamw_equal_pytorchs(
    lr: float, betas: tuple[float, float], eps: float, wd: float, ls: float, scale: float, family: str
) -> None:
    """ADAMW_NO_BIAS corrects the bias all the same (section 4.3)."""
    actual = hand_over(family, Hyper(lr=lr, betas=betas, eps=eps, weight_decay=wd), ls, scale)
    kind = torch.optim.Adam if family == "ADAM" else torch.optim.AdamW
    expected = run_torch(lambda p: kind(p, lr, betas, eps, wd), random_gradients(1, STEPS))
    assert_close(actual, expected)


@FEW
@given(RATE, st.sampled_from([0.9, 0.99]), EPS, DECAY, MOMENTUM, st.booleans(), LOSS_SCALING, SCALE)
def test_rmsprop_equals_pytorchs(
    lr: float, alpha: float, eps: float, wd: float, mm: float, centred: bool, ls: float, scale: float
) -> None:
    hyper = Hyper(lr=lr, alpha=alpha, eps=eps, weight_decay=wd, momentum=mm)
    actual = hand_over("RMSPROP_CENTERED" if centred else "RMSPROP", hyper, ls, scale)
    expected = run_torch(lambda p: torch.optim.RMSprop(p, lr, alpha, eps, wd, mm, centred), random_gradients(1, STEPS))
    # Centred, v1 - v2*v2 cancels on the first step to alpha*(1-alpha)*g*g, which magnifies rounding.
    assert_close(actual, expected, tolerance=2e-3 if centred else 2e-4)


def tensorflow_rmsprop(lr: float, alpha: float, eps: float, wd: float, mm: float, centred: bool) -> dict[str, Tensor]:
    """Section 4.4's variant, literally, in float64."""
    weights = {name: w.double() for name, w in random_weights(0).items()}
    v1 = {name: torch.ones_like(w) for name, w in weights.items()}
    v2 = {name: torch.zeros_like(w) for name, w in weights.items()}
    v3 = {name: torch.zeros_like(w) for name, w in weights.items()}
    for step in random_gradients(1, STEPS):
        for name, w in weights.items():
            g = step[name].double() + wd * w
            v1[name] = alpha * v1[name] + (1 - alpha) * g * g
            v2[name] = alpha * v2[name] + (1 - alpha) * g
            d = torch.sqrt(v1[name] - (v2[name] ** 2 if centred else 0.0) + eps)
            v3[name] = mm * v3[name] + lr * g / d
            w -= v3[name]
    return weights


@FEW
@given(RATE, st.sampled_from([0.9, 0.99]), EPS, DECAY, MOMENTUM, st.booleans())
def test_rmsprop_as_tensorflow_defines_it(
    lr: float, alpha: float, eps: float, wd: float, mm: float, centred: bool
) -> None:
    hyper = Hyper(lr=lr, alpha=alpha, eps=eps, weight_decay=wd, momentum=mm)
    actual = hand_over("RMSPROP_CENTERED" if centred else "RMSPROP", hyper, 1.0, 1.0, use_tf_variant=True)
    assert_close(actual, tensorflow_rmsprop(lr, alpha, eps, wd, mm, centred))


def lamb(
    lr: float, betas: tuple[float, float], eps: float, wd: float, limit: float, corrects: bool
) -> dict[str, Tensor]:
    """Section 4.5, literally, in float64."""
    weights = {name: w.double() for name, w in random_weights(0).items()}
    m = {name: torch.zeros_like(w) for name, w in weights.items()}
    s = {name: torch.zeros_like(w) for name, w in weights.items()}
    for t, step in enumerate(random_gradients(1, STEPS), start=1):
        for name, w in weights.items():
            g = step[name].double()
            m[name] = betas[0] * m[name] + (1 - betas[0]) * g
            s[name] = betas[1] * s[name] + (1 - betas[1]) * g * g
            mc = m[name] / (1 - betas[0] ** t) if corrects else m[name]
            sc = s[name] / (1 - betas[1] ** t) if corrects else s[name]
            x = mc / (sc.sqrt() + eps) + wd * w
            r1, r2 = min(w.norm().item(), limit), x.norm().item()
            w -= lr * (1.0 if r1 == 0 or r2 == 0 else r1 / r2) * x
    return weights


@FEW
@given(RATE, BETAS, EPS, DECAY, st.sampled_from([65500.0, 0.5, 0.0]), st.booleans(), LOSS_SCALING, SCALE)
def test_lamb_scales_the_step_of_every_tensor(
    lr: float,
    betas: tuple[float, float],
    eps: float,
    wd: float,
    limit: float,
    corrects: bool,
    ls: float,
    scale: float,
) -> None:
    hyper = Hyper(lr=lr, betas=betas, eps=eps, weight_decay=wd, max_weight_norm=limit)
    actual = hand_over("LAMB" if corrects else "LAMB_NO_BIAS", hyper, ls, scale)
    assert_close(actual, lamb(lr, betas, eps, wd, limit, corrects))


def test_lamb_without_weight_or_direction_has_a_ratio_of_one() -> None:
    weights = {"zero": torch.zeros(2), "idle": torch.ones(2)}
    updater = updater_of(spec_of("LAMB", Hyper(lr=0.5, betas=(0.0, 0.0), eps=0.0)), weights)
    updater.step({"zero": torch.full((2,), 3.0)}, 1.0)
    assert weights["zero"].tolist() == [-0.5, -0.5]  # x = g/|g| = 1, ratio 1
    updater = updater_of(spec_of("LAMB", Hyper(lr=0.5, betas=(0.0, 0.0), eps=1.0)), weights)
    updater.step({"idle": torch.zeros(2)}, 1.0)
    assert weights["idle"].tolist() == [1.0, 1.0]  # x = 0


def test_each_parameter_group_and_the_defaults_give_their_own_numbers() -> None:
    weights = {"slow": torch.ones(()), "fast": torch.ones(()), "other": torch.ones(())}
    spec = spec_of("SGD2", Hyper(lr=0.1), Hyper(lr=0.2, weight_decay=0.5))
    updater = updater_of(spec, weights, group_of={"slow": 0, "fast": 1, "other": None})
    updater.step({name: torch.tensor(2.0) for name in weights}, 1.0)
    assert weights["slow"].item() == pytest.approx(0.8)
    assert weights["fast"].item() == pytest.approx(1 - 0.2 * 2.5)
    assert weights["other"].item() == pytest.approx(0.8)


def test_a_changed_velocity_scaling_does_not_rescale_the_combined_velocity() -> None:
    """Lowering it over-estimates the velocity for a while (section 4.1): v = 0.9*(vs0*2)/vs1 + 2."""
    weights = {"w": torch.zeros(())}
    hyper = Hyper(lr=1.0, momentum=0.9, velocity_scaling=8.0, variable=frozenset({"velocity_scaling"}))
    updater = updater_of(spec_of("SGD1", hyper), weights)
    updater.step({"w": torch.tensor(2.0)}, 1.0)
    lower = Hyper(lr=1.0, momentum=0.9, velocity_scaling=2.0, variable=frozenset({"velocity_scaling"}))
    updater.set_spec(spec_of("SGD1", lower))
    updater.step({"w": torch.tensor(2.0)}, 1.0)
    assert weights["w"].item() == pytest.approx(-2.0 - (0.9 * 2.0 * 8.0 / 2.0 + 2.0))


@pytest.mark.parametrize(
    ("combined", "second_step"),
    [(True, 0.9 * 2 + 2), (False, 0.1 * 2 + 2)],  # 0.9 was prepared with the first update
)
def test_a_changed_momentum_takes_effect_one_update_later_in_the_combined_variant(
    combined: bool, second_step: float
) -> None:
    family, variable = "SGD1" if combined else "SGD2", frozenset({"momentum"})
    weights = {"w": torch.zeros(())}
    updater = updater_of(spec_of(family, Hyper(lr=1.0, momentum=0.9, variable=variable)), weights)
    updater.step({"w": torch.tensor(2.0)}, 1.0)
    updater.set_spec(spec_of(family, Hyper(lr=1.0, momentum=0.1, variable=variable)))
    updater.step({"w": torch.tensor(2.0)}, 1.0)
    assert weights["w"].item() == pytest.approx(-2.0 - second_step)


@pytest.mark.parametrize("family", ["SGD2", "ADAM", "RMSPROP", "LAMB"])
def test_a_changed_loss_scaling_changes_no_result(family: str) -> None:
    """In exact arithmetic the loss scaling has no effect (section 3)."""
    hyper = Hyper(lr=0.1, momentum=0.9, eps=1e-3)
    changing, constant = random_weights(0), random_weights(0)
    updaters = [updater_of(spec_of(family, hyper, loss_scaling=s, loss_scaling_variable=True), w)
                for s, w in ((16.0, changing), (1.0, constant))]  # fmt: skip
    for step, scaling in zip(random_gradients(1, 3), (16.0, 256.0, 4.0), strict=True):
        updaters[0].set_spec(spec_of(family, hyper, loss_scaling=scaling, loss_scaling_variable=True))
        updaters[0].step({name: g * scaling for name, g in step.items()}, 1.0)
        updaters[1].step({name: g.clone() for name, g in step.items()}, 1.0)
    assert_close(changing, constant)


@FEW
@given(st.sampled_from([0.05, 1.0, 1e6]), LOSS_SCALING, SCALE, st.sampled_from(["SGD2", "SGD1", "ADAM", "ADAMW"]))
def test_clipping_equals_pytorchs_clip_grad_norm(limit: float, ls: float, scale: float, family: str) -> None:
    """One norm over all weights, of the true gradients (section 3), without PyTorch's 1e-6."""
    gradients = random_gradients(1, STEPS)
    hyper = Hyper(lr=0.1, momentum=0.9, eps=1e-2, weight_decay=0.0, velocity_scaling=2.0)
    spec = spec_of(family, hyper, loss_scaling=ls, max_grad_norm=limit)
    actual = run(spec, gradients, scale=scale, factor=ls / scale)
    clipped = []
    for step in gradients:
        norm = math.sqrt(sum(float((g.double() ** 2).sum()) for g in step.values()))
        clipped.append({name: g.double() * (limit / max(norm, limit)) for name, g in step.items()})
    make = {
        "SGD": lambda p: torch.optim.SGD(p, 0.1, 0.9),
        "ADA": lambda p: torch.optim.Adam(p, 0.1, eps=1e-2),
    }[family[:3]]
    assert_close(actual, run_torch(make, clipped))


def test_a_gradient_that_is_not_finite_shows_in_the_weights_even_when_clipped() -> None:
    weights = {"bad": torch.ones(2), "good": torch.ones(2)}
    updater = updater_of(spec_of("SGD2", Hyper(lr=0.1), max_grad_norm=1.0), weights)
    updater.step({"bad": torch.tensor([math.nan, 1.0]), "good": torch.ones(2)}, 1.0)
    assert weights["bad"].isnan().all()
    assert weights["good"].isnan().all()
