"""Optimisers (poptorch-optim.md): how they change weights, in half precision too, what they keep, what may change.

A compiled program's updater is compared with PyTorch's optimisers and with formulas in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch
from half_support import on_grid
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ipu_model.capture.graph import dtype_of
from ipu_model.compute import update_rules
from ipu_model.compute.rounding import Rounding
from ipu_model.compute.updater import Updater
from ipu_model.errors import Error
from ipu_model.optimiser import FAMILIES, Hyper, OptimiserSpec
from ipu_model.step import FLOAT16

Tensors = Mapping[str, Tensor]
SHAPES: Mapping[str, tuple[int, ...]] = {"matrix": (5, 3), "bias": (7,), "scalar": ()}


def spec_of(family: str, *groups: Hyper, **settings: Any) -> OptimiserSpec:
    """Return a spec whose default numbers are those of the first group; element types are torch's."""
    settings = {name: dtype_of(v) if isinstance(v, torch.dtype) else v for name, v in settings.items()}
    return OptimiserSpec(family, groups[0], groups, **settings)


def updater_of(
    spec: OptimiserSpec,
    weights: Tensors,
    *,
    dtype: torch.dtype = torch.float32,
    group_of: Mapping[str, int | None] | None = None,
    generator: torch.Generator | None = None,
) -> Updater:
    """Return an updater of `weights` (all of one dtype; all in group 0 unless told otherwise)."""
    groups = dict.fromkeys(weights, 0) if group_of is None else group_of
    return Updater(spec, weights, dict.fromkeys(weights, dtype), groups, Rounding(generator))


def moved(spec: OptimiserSpec, start: Tensor | float, *gradients: Tensor | float, **settings: Any) -> Tensor:
    """Return one weight after one step for each gradient (a number, or of the weight's shape)."""
    weight = torch.as_tensor(start).clone()
    updater = updater_of(spec, {"w": weight}, **settings)
    for gradient in gradients:
        updater.step({"w": torch.as_tensor(gradient).expand(weight.shape).clone()}, 1.0)
    return weight


def random_weights(seed: int) -> dict[str, Tensor]:
    source = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=source) for name, shape in SHAPES.items()}


def random_gradients(steps: int) -> list[dict[str, Tensor]]:
    return [random_weights(1000 + step) for step in range(1, steps + 1)]


def run(spec: OptimiserSpec, gradients: Sequence[Tensors], *, scale: float, factor: float) -> dict[str, Tensor]:
    """Return the weights after all `gradients`, each multiplied by `factor`, with `scale` left to apply."""
    weights = random_weights(0)
    updater = updater_of(spec, weights)
    for step in gradients:
        updater.step({name: gradient * factor for name, gradient in step.items()}, scale)
    return weights


def run_torch(make: Callable[[list[Tensor]], torch.optim.Optimizer], gradients: Sequence[Tensors]) -> dict[str, Tensor]:
    """Return what a PyTorch optimiser makes of the same weights and gradients, in float64."""
    weights = {name: w.double().requires_grad_() for name, w in random_weights(0).items()}
    optimiser = make(list(weights.values()))
    for step in gradients:
        for name, weight in weights.items():
            weight.grad = step[name].double()
        optimiser.step()
    return {name: weight.detach() for name, weight in weights.items()}


def assert_close(actual: Tensors, expected: Tensors, tolerance: float = 2e-5) -> None:
    """Compare float32 results with float64 ones."""
    assert actual.keys() == expected.keys()
    for name, value in actual.items():
        torch.testing.assert_close(value.double(), expected[name].double(), rtol=tolerance, atol=tolerance, msg=name)


# The formulas (poptorch-optim.md, section 4), by PyTorch's optimisers or literally, in float64.

STEPS = 4
FEW = settings(max_examples=40, deadline=None)
HYPER = st.builds(
    Hyper,
    lr=st.floats(1e-4, 0.2),
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
    dampening=st.sampled_from([0.0, 0.3, 1.0]),
    weight_decay=st.sampled_from([0.0, 1e-3, 0.1]),
    nesterov=st.booleans(),
    velocity_scaling=st.sampled_from([1.0, 4.0, 128.0]),
    betas=st.sampled_from([(0.9, 0.999), (0.5, 0.9), (0.0, 0.99)]),
    eps=st.sampled_from([1e-3, 1e-2]),  # large: it keeps tiny quotients from magnifying float32 rounding
    alpha=st.sampled_from([0.9, 0.99]),
    max_weight_norm=st.sampled_from([65500.0, 0.5, 0.0]),
)
LOSS_SCALING = st.sampled_from([1.0, 128.0, 0.5])
SCALE = st.sampled_from([1.0, 1.0 / 3.0, 0.25])
State = dict[str, Tensor]


def pytorchs(kind: Any, names: str, hyper: Hyper, **more: Any) -> dict[str, Tensor]:
    numbers = {name: getattr(hyper, name) for name in names.split()}
    return run_torch(lambda weights: kind(weights, **numbers, **more), random_gradients(STEPS))


def literally(formula: Callable[[Tensor, Tensor, State, int], Tensor], ones: str = "") -> dict[str, Tensor]:
    """Train with `w -= formula(w, g, state, t)`; the state starts with zeros, or with ones where named."""
    weights = {name: w.double() for name, w in random_weights(0).items()}
    states = {name: {slot: torch.full_like(w, float(slot == ones)) for slot in "vms"} for name, w in weights.items()}
    for t, step in enumerate(random_gradients(STEPS), start=1):
        for name, w in weights.items():
            w -= formula(w, step[name].double(), states[name], t)
    return weights


def sgd(h: Hyper, family: str) -> tuple[Hyper, dict[str, Tensor]]:
    h = replace(h, dampening=0.0, nesterov=h.nesterov and h.momentum > 0)
    return h, pytorchs(torch.optim.SGD, "lr momentum weight_decay nesterov", h)


def dampened_sgd(h: Hyper, family: str) -> tuple[Hyper, dict[str, Tensor]]:
    """Section 4.1's separate variant: dampening applies from the first step and without momentum too."""

    def formula(w: Tensor, g: Tensor, state: State, t: int) -> Tensor:
        state["v"] = h.momentum * state["v"] + (1 - h.dampening) * (g + h.weight_decay * w)
        return h.lr * state["v"]

    return replace(h, nesterov=False), literally(formula)


def tensorflows_rmsprop(h: Hyper, family: str) -> tuple[Hyper, dict[str, Tensor]]:
    """Section 4.4's variant."""

    def formula(w: Tensor, g: Tensor, state: State, t: int) -> Tensor:
        g = g + h.weight_decay * w
        state["s"] = h.alpha * state["s"] + (1 - h.alpha) * g * g
        state["m"] = h.alpha * state["m"] + (1 - h.alpha) * g
        d = torch.sqrt(state["s"] - (state["m"] ** 2 if "CENTERED" in family else 0.0) + h.eps)
        state["v"] = h.momentum * state["v"] + h.lr * g / d
        return state["v"]

    return h, literally(formula, ones="s")


def lamb(h: Hyper, family: str) -> tuple[Hyper, dict[str, Tensor]]:
    """Section 4.5."""
    b1, b2 = h.betas

    def formula(w: Tensor, g: Tensor, state: State, t: int) -> Tensor:
        state["m"] = b1 * state["m"] + (1 - b1) * g
        state["s"] = b2 * state["s"] + (1 - b2) * g * g
        c1, c2 = (1 - b1**t, 1 - b2**t) if family == "LAMB" else (1.0, 1.0)
        x = state["m"] / c1 / ((state["s"] / c2).sqrt() + h.eps) + h.weight_decay * w
        r1, r2 = min(w.norm().item(), h.max_weight_norm), x.norm().item()
        return h.lr * (1.0 if r1 == 0 or r2 == 0 else r1 / r2) * x

    return h, literally(formula)


Expected = Callable[[Hyper, str], tuple[Hyper, dict[str, Tensor]]]
ADAM, RMS = "lr betas eps weight_decay", "lr alpha eps weight_decay momentum"
# Families and how near, other settings, what is expected. Centred, v1 - v2*v2 cancels on the first step to
# alpha*(1-alpha)*g*g, which magnifies rounding. ADAMW_NO_BIAS corrects the bias all the same (section 4.3).
FORMULAS: dict[str, tuple[dict[str, float], dict[str, Any], Expected]] = {
    "SGD": ({"SGD1": 2e-5, "SGD2": 2e-5}, {}, sgd),
    "dampened SGD": ({"SGD1": 2e-5, "SGD2": 2e-5}, {}, dampened_sgd),
    "Adam": ({"ADAM": 2e-5}, {}, lambda h, f: (h, pytorchs(torch.optim.Adam, ADAM, h))),
    "AdamW": ({"ADAMW": 2e-5, "ADAMW_NO_BIAS": 2e-5}, {}, lambda h, f: (h, pytorchs(torch.optim.AdamW, ADAM, h))),
    "RMSprop": ({"RMSPROP": 2e-4}, {}, lambda h, f: (h, pytorchs(torch.optim.RMSprop, RMS, h))),
    "centred RMSprop": (
        {"RMSPROP_CENTERED": 2e-3}, {}, lambda h, f: (h, pytorchs(torch.optim.RMSprop, RMS, h, centered=True)),
    ),
    "TensorFlow's RMSprop": (
        {"RMSPROP": 2e-5, "RMSPROP_CENTERED": 2e-5}, {"use_tf_variant": True}, tensorflows_rmsprop,
    ),
    "LAMB": ({"LAMB": 2e-5, "LAMB_NO_BIAS": 2e-5}, {}, lamb),
}  # fmt: skip


@FEW
@pytest.mark.parametrize("name", FORMULAS)
@given(st.data(), HYPER, LOSS_SCALING, SCALE)
def test_weights_follow_the_formula(name: str, data: st.DataObject, hyper: Hyper, ls: float, scale: float) -> None:
    """The updater gets sums of gradients, multiplied by the loss scaling; `scale` makes means of them."""
    tolerances, options, expected_of = FORMULAS[name]
    family = data.draw(st.sampled_from(sorted(tolerances)))
    hyper, expected = expected_of(hyper, family)
    spec = spec_of(family, hyper, loss_scaling=ls, **options)
    actual = run(spec, random_gradients(STEPS), scale=scale, factor=ls / scale)
    assert_close(actual, expected, tolerance=tolerances[family])


def variable(**numbers: Any) -> Hyper:
    return Hyper(**numbers, variable=frozenset(numbers))


LAMB_ALONE = {"lr": 0.5, "betas": (0.0, 0.0)}


@pytest.mark.parametrize(("family", "start", "steps", "expected"), [
    # A ratio of one without weight or direction: x = g/|g| = 1, or 0.
    ("LAMB", 0.0, [(Hyper(**LAMB_ALONE, eps=0.0), 3.0)], -0.5),
    ("LAMB", 1.0, [(Hyper(**LAMB_ALONE, eps=1.0), 0.0)], 1.0),
    # Lowering the velocity scaling over-estimates the velocity for a while (4.1): v = 0.9*(vs0*2)/vs1 + 2.
    ("SGD1", 0.0, [(variable(lr=1.0, momentum=0.9, velocity_scaling=vs), 2.0) for vs in (8.0, 2.0)],
     -2.0 - (0.9 * 2.0 * 8.0 / 2.0 + 2.0)),
    # The combined tensor was prepared with the old momentum.
    ("SGD1", 0.0, [(variable(lr=1.0, momentum=momentum), 2.0) for momentum in (0.9, 0.1)], -2 - (0.9 * 2 + 2)),
    ("SGD2", 0.0, [(variable(lr=1.0, momentum=momentum), 2.0) for momentum in (0.9, 0.1)], -2 - (0.1 * 2 + 2)),
    ("SGD2", 1.0, [(variable(lr=rate), 2.0) for rate in (0.1, 0.2)], 1 - 0.2 - 0.4),
])  # fmt: skip
def test_one_number_by_hand(family: str, start: float, steps: list[tuple[Hyper, float]], expected: float) -> None:
    """A new value acts from the next step on."""
    weights = {"w": torch.tensor([start])}
    updater = updater_of(spec_of(family, steps[0][0]), weights)
    for hyper, gradient in steps:
        updater.set_spec(spec_of(family, hyper))
        updater.step({"w": torch.tensor([gradient])}, 1.0)
    assert weights["w"].item() == pytest.approx(expected)


@pytest.mark.parametrize("family", ["SGD2", "ADAM", "RMSPROP", "LAMB"])
def test_a_changed_loss_scaling_changes_no_result(family: str) -> None:
    """In exact arithmetic the loss scaling has no effect (section 3)."""
    hyper = Hyper(lr=0.1, momentum=0.9, eps=1e-3)
    changing, constant = random_weights(0), random_weights(0)
    updaters = [updater_of(spec_of(family, hyper, loss_scaling=s, loss_scaling_variable=True), w)
                for s, w in ((16.0, changing), (1.0, constant))]  # fmt: skip
    for step, scaling in zip(random_gradients(3), (16.0, 256.0, 4.0), strict=True):
        updaters[0].set_spec(spec_of(family, hyper, loss_scaling=scaling, loss_scaling_variable=True))
        updaters[0].step({name: g * scaling for name, g in step.items()}, 1.0)
        updaters[1].step({name: g.clone() for name, g in step.items()}, 1.0)
    assert_close(changing, constant)


@FEW
@given(st.sampled_from([0.05, 1.0, 1e6]), LOSS_SCALING, SCALE, st.sampled_from(["SGD2", "SGD1", "ADAM", "ADAMW"]))
def test_clipping_equals_pytorchs_clip_grad_norm(limit: float, ls: float, scale: float, family: str) -> None:
    """One norm over all weights, of the true gradients (section 3), without PyTorch's 1e-6."""
    gradients = random_gradients(STEPS)
    hyper = Hyper(lr=0.1, momentum=0.9, eps=1e-2, weight_decay=0.0, velocity_scaling=2.0)
    spec = spec_of(family, hyper, loss_scaling=ls, max_grad_norm=limit)
    actual = run(spec, gradients, scale=scale, factor=ls / scale)
    clipped = []
    for step in gradients:
        norm = math.sqrt(sum(float((g.double() ** 2).sum()) for g in step.values()))
        clipped.append({name: g.double() * (limit / max(norm, limit)) for name, g in step.items()})
    sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    assert_close(actual, run_torch(sgd if "SGD" in family else partial(torch.optim.Adam, lr=0.1, eps=1e-2), clipped))


def test_a_gradient_that_is_not_finite_shows_in_the_weights_even_when_clipped() -> None:
    weights = {"bad": torch.ones(2), "good": torch.ones(2)}
    updater = updater_of(spec_of("SGD2", Hyper(lr=0.1), max_grad_norm=1.0), weights)
    updater.step({"bad": torch.tensor([math.nan, 1.0]), "good": torch.ones(2)}, 1.0)
    assert weights["bad"].isnan().all()
    assert weights["good"].isnan().all()


FUSED = [
    spec_of("SGD2", Hyper(lr=0.1, momentum=0.9, dampening=0.2, weight_decay=0.1), loss_scaling=4.0),
    spec_of("SGD2", Hyper(lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True)),
    spec_of("ADAM", Hyper(lr=0.1, weight_decay=0.1, eps=1e-3), loss_scaling=4.0),
    spec_of("ADAMW", Hyper(lr=0.1, weight_decay=0.1, eps=1e-3)),
]


@pytest.mark.parametrize("spec", FUSED, ids=lambda spec: spec.family)
@pytest.mark.parametrize("scale", [1.0, 1.0 / 3.0])
def test_pytorchs_private_fused_kernels_agree_with_the_plain_update(spec: OptimiserSpec, scale: float) -> None:
    results = []
    for changes in ({}, {"_fits_fused": lambda *tensors: False}):
        names = ("fused_sgd_", "fused_adam_", "fused_adamw_")
        kernels = {name: Mock(wraps=getattr(update_rules, name)) for name in names}
        with patch.multiple(update_rules, **kernels, **changes):
            weights = random_weights(0)
            updater = updater_of(spec, weights)
            for step in random_gradients(3):
                updater.step(step, scale)
        assert any(kernel.called for kernel in kernels.values()) is not bool(changes)
        results.append({**weights, **updater.state})
    assert_close(*results, tolerance=1e-6)


HALF = torch.float16
ALL_HALF = {"accum_dtype": HALF, "velocity_dtype": HALF, "first_dtype": HALF, "second_dtype": HALF}
EVERY_FAMILY = [
    spec_of(family, Hyper(lr=0.1, momentum=momentum, weight_decay=decay, nesterov=nesterov), use_tf_variant=tf)
    for family, momentum, decay, nesterov, tf in (
        ("SGD2", 0.0, 0.1, False, False),
        ("SGD2", 0.9, 0.1, False, False),
        ("SGD2", 0.9, 0.0, True, False),
        ("SGD1", 0.9, 0.1, False, False),
        ("SGD1", 0.9, 0.0, True, False),
        ("ADAM", 0.0, 0.1, False, False),
        ("ADAMW", 0.0, 0.1, False, False),
        ("LAMB", 0.0, 0.1, False, False),
        ("RMSPROP", 0.9, 0.0, False, False),
        ("RMSPROP", 0.9, 0.0, False, True),
        ("RMSPROP_CENTERED", 0.9, 0.0, False, False),
    )
]
IN_HALF = [replace(spec, **dict.fromkeys(ALL_HALF, FLOAT16)) for spec in EVERY_FAMILY]
every_family = pytest.mark.parametrize("spec", [*EVERY_FAMILY, *IN_HALF], ids=lambda spec: spec.family)


Arrangement = tuple[dict[str, Tensor], dict[str, Tensor]]


def shared_gradients(source: torch.Generator) -> Arrangement:
    """As for two biases that are added to the same value; a view of it counts too."""
    start, shared = torch.rand(1, 6, generator=source), torch.rand(1, 6, generator=source) + 0.5
    weights = {"a": start.clone(), "b": start.clone(), "c": start[0, :3].clone()}
    return weights, {"a": shared, "b": shared, "c": shared[0, :3]}


def weights_as_gradients(source: torch.Generator) -> Arrangement:
    a, b = torch.rand(2, 4, generator=source) + 1.0
    return {"a": a, "b": b}, {"a": b, "b": a}


def channels_last(source: torch.Generator) -> Arrangement:
    weight, gradient = torch.rand(2, 2, 3, 4, 5, generator=source)
    return {"a": weight.to(memory_format=torch.channels_last)}, {"a": gradient}


ARRANGEMENTS: dict[str, Callable[[torch.Generator], Arrangement]] = {
    "shared gradients": shared_gradients,
    "weights as gradients": weights_as_gradients,
    "channels last": channels_last,
    "transposed": lambda g: ({"a": torch.rand(4, 6, generator=g)}, {"a": torch.rand(6, 4, generator=g).t()}),
    "expanded": lambda g: ({"a": torch.rand(4, 6, generator=g)}, {"a": torch.ones(1, 6).expand(4, 6)}),
}


@every_family
@pytest.mark.parametrize("kind", ARRANGEMENTS)
def test_any_arrangement_of_gradients_gives_the_same_update_in_place(spec: OptimiserSpec, kind: str) -> None:
    """All gradients are those from before the update, also when groups are updated one after the other."""
    spec, groups = replace(spec, groups=(spec.default, replace(spec.default, lr=0.2))), {"a": 0, "b": 1, "c": 0}
    weights, gradients = ARRANGEMENTS[kind](torch.Generator().manual_seed(0))
    dense = [{name: t.contiguous().clone() for name, t in tensors.items()} for tensors in (weights, gradients)]
    pointers = {name: weight.data_ptr() for name, weight in weights.items()}
    group_of = {name: groups[name] for name in weights}
    updater_of(spec, weights, group_of=group_of).step(gradients, 0.5)
    updater_of(spec, dense[0], group_of=group_of).step(dense[1], 0.5)
    assert {name: weight.data_ptr() for name, weight in weights.items()} == pointers
    torch.testing.assert_close(weights, dense[0], rtol=1e-5, atol=1e-6)


@every_family
def test_a_weight_without_gradient_is_left_alone_with_its_state(spec: OptimiserSpec) -> None:
    weights, before = random_weights(0), random_weights(0)
    updater = updater_of(spec, weights)
    state = {name: s.clone() for name, s in updater.state.items()}
    gradients = random_gradients(1)[0]
    del gradients["bias"]
    updater.step(gradients, 1.0)
    assert torch.equal(weights["bias"], before["bias"])
    assert all(torch.equal(updater.state[n], s) for n, s in state.items() if n.endswith("___bias"))
    assert not torch.equal(weights["matrix"], before["matrix"])


# Half-precision weights and state in float32 containers, rounded once per result (section 5).


@pytest.mark.parametrize("stochastic", [False, True])
@every_family
def test_half_weights_and_half_state_stay_on_the_grid(spec: OptimiserSpec, stochastic: bool) -> None:
    weights = {name: w.to(HALF).float() for name, w in random_weights(0).items()}
    before = {name: w.clone() for name, w in weights.items()}
    generator = torch.Generator().manual_seed(0) if stochastic else None
    updater = updater_of(spec, weights, dtype=HALF, generator=generator)
    for step in random_gradients(3):
        updater.step(step, 0.5)
    for name, weight in weights.items():
        assert weight.dtype == torch.float32
        assert on_grid(weight)
        assert not torch.equal(weight, before[name])
    assert all(on_grid(updater.state[name]) for name, read in updater.read_state().items() if read.dtype == HALF)


def test_the_weight_is_rounded_once_from_exact_arithmetic() -> None:
    """w*(1 - lr*wd) - lr*g in float64, then numpy's float16: decay and step are not rounded one by one."""
    w, g = torch.randn(2, 1000, generator=torch.Generator().manual_seed(0)).to(HALF).float()
    expected = (w.double().numpy() * (1 - 0.1 * 0.3) - 0.1 * g.double().numpy()).astype(np.float16)
    weight = moved(spec_of("SGD2", Hyper(lr=0.1, weight_decay=0.3)), w, g, dtype=HALF)
    agreement = (weight.numpy() == expected.astype(np.float32)).mean()
    assert agreement >= 0.99  # float32 in between decides a near-tie the other way now and then


@pytest.mark.parametrize(("scaling", "expected"), [(1.0, 0.0), (1024.0, -(2.0**-26))])
def test_loss_scaling_saves_a_small_half_velocity_from_underflow(scaling: float, expected: float) -> None:
    """The separate velocity is kept times the loss scaling: 2^-26 alone would round to zero in float16."""
    spec = spec_of("SGD2", Hyper(lr=1.0, momentum=0.5), loss_scaling=scaling, velocity_dtype=HALF)
    assert moved(spec, 0.0, 2.0**-26 * scaling).item() == expected


def test_a_half_moment_is_rounded_before_it_is_used() -> None:
    """m = 0.1*g and s = 0.001*g*g rounded to float16 by numpy, then section 4.2 in float64 (t = 1)."""
    g = 0.3
    m, s = float(np.float16(0.1 * g)), float(np.float16(0.001 * g * g))
    expected = -0.1 * (m / 0.1) / (math.sqrt(s / 0.001) + 1e-8)
    weight = moved(spec_of("ADAM", Hyper(lr=0.1), **ALL_HALF), 0.0, g)
    assert weight.item() == pytest.approx(expected, rel=1e-5)
    assert weight.item() != pytest.approx(-0.1, rel=1e-5)  # what exact moments would give


def test_loaded_half_state_is_put_on_the_grid() -> None:
    updater = updater_of(spec_of("SGD2", Hyper(lr=0.1, momentum=0.9), velocity_dtype=HALF), {"w": torch.zeros(1)})
    updater.load_state({"Accl1___w": torch.full((1,), 1 + 2.0**-20)}, None)
    assert updater.state["Accl1___w"].item() == 1.0


# What an optimiser keeps (sections 1, 6, 8).

BASE = Hyper(lr=0.1, momentum=0.9)
ZERO_BUT_VARIABLE = Hyper(lr=0.1, variable=frozenset({"momentum"}))

# State and streamed scalars by name, and loading them.


@pytest.mark.parametrize(("spec", "prefixes"), [
    (spec_of("SGD2", Hyper(lr=0.1)), ""),
    (spec_of("SGD1", Hyper(lr=0.1)), ""),
    (spec_of("SGD2", BASE), "Accl1"),
    (spec_of("SGD1", BASE), "Accl1"),
    (spec_of("SGD2", ZERO_BUT_VARIABLE), "Accl1"),
    (spec_of("ADAM", Hyper()), "Accl1 Accl2 Step"),
    (spec_of("ADAMW_NO_BIAS", Hyper()), "Accl1 Accl2 Step"),
    (spec_of("LAMB", Hyper()), "Accl1 Accl2 Step"),
    (spec_of("RMSPROP", Hyper()), "Accl1"),
    (spec_of("RMSPROP", BASE), "Accl1 Accl3"),
    (spec_of("RMSPROP_CENTERED", BASE), "Accl1 Accl2 Accl3"),
])  # fmt: skip
@pytest.mark.parametrize("tensorflow", [False, True])
def test_each_family_keeps_its_state(spec: OptimiserSpec, prefixes: str, tensorflow: bool) -> None:
    """State starts at zero; the average square of TensorFlow's RMSprop at one."""
    state = updater_of(replace(spec, use_tf_variant=tensorflow), {"layer.weight": torch.ones(2, 3)}).state
    assert set(state) == {f"{prefix}___layer.weight" for prefix in prefixes.split()}
    for name, tensor in state.items():
        assert tensor.shape == (() if name.startswith("Step") else (2, 3))
        starts_at_one = tensorflow and "RMSPROP" in spec.family and name.startswith("Accl1")
        assert (tensor == float(starts_at_one)).all()


def test_velocity_is_needed_group_by_group() -> None:
    spec = spec_of("SGD2", Hyper(lr=0.1), BASE)
    weights = {"plain": torch.zeros(1), "heavy": torch.zeros(1)}
    assert set(updater_of(spec, weights, group_of={"plain": 0, "heavy": 1}).state) == {"Accl1___heavy"}


def test_state_is_read_in_the_dtypes_of_the_device_and_as_copies() -> None:
    half, single = torch.float16, torch.float32
    spec = spec_of("ADAM", Hyper(lr=0.1), first_dtype=half, second_dtype=single)
    updater = updater_of(spec, {"w": torch.ones(2)})
    updater.step({"w": torch.ones(2)}, 1.0)
    read = updater.read_state()
    assert {name: tensor.dtype for name, tensor in read.items()} == {
        "Accl1___w": half, "Accl2___w": single, "Step___w": single,
    }  # fmt: skip
    assert read["Step___w"].item() == 1.0
    read["Accl2___w"].zero_()
    assert updater.state["Accl2___w"].all()


@pytest.mark.parametrize(("family", "numbers"), [
    ("SGD2", {"scaledLearningRate0": 0.0625, "weightDecayScaleFactor0": 0.9375}),
    *((family, {"learningRate": 0.5, "weightDecay": 0.25}) for family in ("ADAM", "ADAMW", "LAMB", "RMSPROP")),
])  # fmt: skip
def test_numbers_are_streamed_for_each_weight(family: str, numbers: dict[str, float]) -> None:
    """Plain SGD streams lr*(1-dm)/ls and 1-lr*(1-dm)*wd (section 8.1), those of the Adam family are as they are."""
    hyper = Hyper(lr=0.5, dampening=0.5, weight_decay=0.25)
    parameters = updater_of(spec_of(family, hyper, loss_scaling=4.0), {"a.b": torch.ones(1)}).parameters()
    expected = {f"{name}___specific___a.b": value for name, value in numbers.items()} | {"lossScaling_FLOAT": 4.0}
    streamed = {name: tensor.item() for name, tensor in parameters.items()}
    assert expected.items() <= streamed.items()
    assert family != "SGD2" or expected == streamed
    assert all(tensor.shape == () and tensor.dtype == torch.float32 for tensor in parameters.values())


@pytest.mark.parametrize("spec", [
    spec_of("SGD2", Hyper(lr=0.1, momentum=0.9, weight_decay=0.1), loss_scaling=8.0),
    spec_of("SGD1", Hyper(lr=0.1, momentum=0.9, weight_decay=0.1, velocity_scaling=2.0)),
    spec_of("ADAMW", Hyper(lr=0.1, eps=1e-3)),
    spec_of("LAMB", Hyper(lr=0.1, eps=1e-3)),
    spec_of("RMSPROP_CENTERED", BASE, use_tf_variant=True),
])  # fmt: skip
def test_training_continues_from_a_checkpoint(spec: OptimiserSpec) -> None:
    def train(weights: dict[str, Tensor], steps: slice, checkpoint: Any = None) -> Any:
        updater = updater_of(spec, weights)
        if checkpoint is not None:
            assert updater.load_state(*checkpoint) == []
        for step in random_gradients(4)[steps]:
            updater.step(step, 1.0)
        return updater.read_state(), updater.parameters()

    at_once, in_two = random_weights(0), random_weights(0)
    train(at_once, slice(4))
    train(in_two, slice(2, 4), train(in_two, slice(2)))
    assert_close(in_two, at_once, tolerance=1e-6)


def test_a_checkpoint_from_before_the_first_update_is_a_fresh_start() -> None:
    """The combined tensor receives the decay with the first update, also after its zeros were loaded."""
    spec = spec_of("SGD1", Hyper(lr=0.1, momentum=0.9, weight_decay=0.5))
    weights = {"w": torch.ones(())}
    updater = updater_of(spec, weights)
    updater.load_state(updater.read_state(), updater.parameters())
    updater.step({"w": torch.tensor(2.0)}, 1.0)
    assert weights["w"].item() == pytest.approx(1 - 0.1 * (2 + 0.5))


def test_state_of_another_shape_is_refused_before_anything_changes() -> None:
    updater = updater_of(spec_of("SGD2", BASE), {"a": torch.zeros(1), "b": torch.zeros(2)})
    with pytest.raises(Error, match=r"Accl1___b has shape \(3,\).*needs \(2,\)"):
        updater.load_state({"Accl1___a": torch.ones(1), "Accl1___b": torch.ones(3)}, None)
    assert not updater.state["Accl1___a"].any()


@pytest.mark.parametrize(("spec", "message"), [
    (spec_of("SGD2", BASE, loss_scaling=0.0), "Loss scaling cannot be 0"),
    (spec_of("SGD2", BASE, max_grad_norm=float("nan")), "max_grad_norm is NaN"),
    (spec_of("SGD1", Hyper(lr=0.1, velocity_scaling=0.0)), "Velocity scaling cannot be 0"),
    (spec_of("ADAGRAD", Hyper(lr=0.1)), "Unknown optimiser family 'ADAGRAD'"),
])  # fmt: skip
def test_values_that_no_device_can_run_with_are_refused(spec: OptimiserSpec, message: str) -> None:
    updater = updater_of(spec_of("SGD2", BASE), {"w": torch.zeros(1)})
    for start in (lambda: updater_of(spec, {"w": torch.zeros(1)}), lambda: updater.set_spec(spec)):
        with pytest.raises(Error, match=message):
            start()


# Another optimiser for a compiled program.

CHANGED: dict[str, Any] = {
    "lr": 0.2, "momentum": 0.5, "dampening": 0.25, "weight_decay": 0.1, "velocity_scaling": 2.0,
    "betas": (0.8, 0.99), "eps": 1e-4, "alpha": 0.9, "max_weight_norm": 1.0, "nesterov": True,
}  # fmt: skip
# Each attribute with one of the families that have it.
EVERY_ATTRIBUTE = {name: family for family, names in FAMILIES.items() for name in names}.items()
TO_VARIABLE = "Can not replace a constant value with a non constant value"
TO_CONSTANT = "Can not replace a non constant value with a constant value"


def check(old: OptimiserSpec, new: OptimiserSpec, message: str = "", group: int | None = 0) -> None:
    """Replace one optimiser by another; with a message, that is refused and leaves everything as it was."""
    updater = updater_of(old, {"w": torch.zeros(1)}, group_of={"w": group})
    if message:
        with pytest.raises(Error, match=message):
            updater.set_spec(new)
    else:
        updater.set_spec(new)
    assert updater.spec == (old if message else new)


@pytest.mark.parametrize(("attribute", "family"), EVERY_ATTRIBUTE)
def test_only_a_variable_can_change_and_remains_one(family: str, attribute: str) -> None:
    """Nesterov momentum is compiled in even when it is marked as a variable."""
    new = {attribute: CHANGED[attribute]}
    old, variable = BASE, replace(BASE, variable=frozenset({attribute}))
    constant = f"Values are constant but do not match: {attribute} of group 0"
    check(spec_of(family, old), spec_of(family, replace(old, **new)), constant)
    fixed = attribute == "nesterov"
    check(spec_of(family, variable), spec_of(family, replace(variable, **new)), constant if fixed else "")
    check(spec_of(family, old), spec_of(family, variable), "" if fixed else TO_VARIABLE)
    check(spec_of(family, variable), spec_of(family, old), "" if fixed else TO_CONSTANT)


OTHER = replace(BASE, lr=0.5)
SGD, VARIABLE = spec_of("SGD2", BASE), spec_of("SGD2", BASE, loss_scaling_variable=True)
COMPILED_IN = {
    "max_grad_norm": ("max_grad_norm", 1.0),
    "use_tf_variant": ("use_tf_variant", True),
    "accum_dtype": ("accum_type", torch.float16),
    "velocity_dtype": ("velocity_accum_type", torch.float16),
    "first_dtype": ("first_order_momentum_accum_type", torch.float16),
    "second_dtype": ("second_order_momentum_accum_type", torch.float16),
}


@pytest.mark.parametrize(("old", "new", "message", "group"), [
    (spec_of("SGD1", BASE), SGD, "compiled SGD1 optimiser by one of type SGD2", 0),
    (SGD, spec_of("ADAM", BASE), "compiled SGD2 optimiser by one of type ADAM", 0),
    (spec_of("ADAMW", BASE), spec_of("ADAMW_NO_BIAS", BASE), "ADAMW optimiser by one of type ADAMW_NO_BIAS", 0),
    *(
        (SGD, spec_of("SGD2", BASE, **{setting: value}), f"Can not change {public} from", 0)
        for setting, (public, value) in COMPILED_IN.items()
    ),
    # Attributes that the family does not use may change.
    (spec_of("ADAM", BASE), spec_of("ADAM", replace(BASE, momentum=0.5, alpha=0.5)), "", 0),
    # Loss scaling follows the same rules.
    (SGD, spec_of("SGD2", BASE, loss_scaling=2.0), "are constant but do not match: loss_scaling of the optimiser", 0),
    (VARIABLE, replace(VARIABLE, loss_scaling=2.0), "", 0),
    (SGD, VARIABLE, TO_VARIABLE, 0),
    # Only groups with compiled weights are compared.
    (spec_of("SGD2", BASE, BASE), spec_of("SGD2", BASE, OTHER), "", 0),
    (spec_of("SGD2", BASE, BASE), spec_of("SGD2", BASE, OTHER), "lr of group 1", 1),
    (SGD, replace(SGD, default=OTHER), "lr of the defaults", None),
    (spec_of("SGD2", BASE, BASE), SGD, "parameter group 1, but the new optimiser has only 1 groups", 1),
])  # fmt: skip
def test_what_is_compiled_in_cannot_change(old: Any, new: Any, message: str, group: int | None) -> None:
    check(old, new, message, group)
