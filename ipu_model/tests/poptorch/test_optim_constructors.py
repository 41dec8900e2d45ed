"""Constructors and their errors (poptorch-optim.md, section 2)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from optim_support import MAKERS, group_values, log_lines, parameter

from poptorch import optim

FLOAT, HALF = torch.float32, torch.float16
MOMENTS = ("accum_type", "first_order_momentum_accum_type", "second_order_momentum_accum_type")


def options(optimizer: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(optimizer, name) for name in names}


def test_defaults_of_sgd() -> None:
    sgd = optim.SGD([parameter()], lr=0.1)
    assert group_values(sgd, "lr", "momentum", "dampening", "weight_decay", "nesterov") == {
        "lr": 0.1, "momentum": 0, "dampening": 0, "weight_decay": 0, "nesterov": False,
    }  # fmt: skip
    names = ("loss_scaling", "use_combined_accum", "accum_type", "velocity_accum_type", "max_grad_norm")
    assert options(sgd, *names) == dict(zip(names, (1.0, False, FLOAT, FLOAT, math.inf), strict=True))


@pytest.mark.parametrize(("name", "weight_decay"), [("Adam", 0), ("AdamW", 1e-2)])
def test_defaults_of_adam_and_adamw(name: str, weight_decay: float) -> None:
    adam = MAKERS[name]([parameter()])
    assert group_values(adam, "lr", "betas", "eps", "weight_decay", "amsgrad") == {
        "lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": weight_decay, "amsgrad": False,
    }  # fmt: skip
    assert options(adam, "loss_scaling", "max_grad_norm") == {"loss_scaling": 1.0, "max_grad_norm": math.inf}
    assert set(options(adam, *MOMENTS).values()) == {FLOAT}


def test_only_adamw_and_lamb_have_bias_correction() -> None:
    assert optim.AdamW([parameter()]).bias_correction is True
    assert optim.LAMB([parameter()], bias_correction=False).bias_correction is False
    with pytest.raises(TypeError):
        optim.Adam([parameter()], bias_correction=True)  # type: ignore[call-arg] # on purpose


def test_defaults_of_rmsprop() -> None:
    rmsprop = optim.RMSprop([parameter()])
    assert group_values(rmsprop, "lr", "alpha", "eps", "weight_decay", "momentum", "centered") == {
        "lr": 1e-2, "alpha": 0.99, "eps": 1e-8, "weight_decay": 0, "momentum": 0, "centered": False,
    }  # fmt: skip
    assert options(rmsprop, "loss_scaling", "use_tf_variant") == {
        "loss_scaling": 1.0,
        "use_tf_variant": False,
    }
    assert not hasattr(rmsprop, "max_grad_norm")


def test_defaults_of_lamb() -> None:
    lamb = optim.LAMB([parameter()])
    assert group_values(lamb, "lr", "betas", "eps", "weight_decay", "max_weight_norm") == {
        "lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2, "max_weight_norm": 65500.0,
    }  # fmt: skip
    assert lamb.max_weight_norm == 65500.0
    assert not hasattr(lamb, "max_grad_norm")


def test_poptorchs_arguments_come_after_pytorchs() -> None:
    """By position, up to the loss scaling and what follows it, in the order of poptorch_names.md."""
    sgd = optim.SGD([parameter()], 0.1, 0.9, 0.0, 0.2, True, False, False, False, 8.0, 4.0, True, HALF, FLOAT, 1.5)
    numbers = {"lr": 0.1, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.2, "nesterov": True}
    assert group_values(sgd, *numbers, "velocity_scaling") == {**numbers, "velocity_scaling": 4.0}
    assert (sgd.loss_scaling, sgd.use_combined_accum, sgd.accum_type, sgd.max_grad_norm) == (
        8.0,
        True,
        HALF,
        1.5,
    )
    adam = optim.Adam([parameter()], 0.1, (0.5, 0.6), 0.2, 0.3, *[False] * 6, 2.0, HALF, FLOAT, HALF, 1.5)
    adamw = optim.AdamW([parameter()], 0.1, (0.5, 0.6), 0.2, 0.3, *[False] * 6, 2.0, False, HALF, FLOAT, HALF, 1.5)
    for optimizer in (adam, adamw):
        assert (optimizer.loss_scaling, optimizer.max_grad_norm) == (2.0, 1.5)
        assert [getattr(optimizer, name) for name in MOMENTS] == [HALF, FLOAT, HALF]
    assert adamw.bias_correction is False
    rmsprop = optim.RMSprop([parameter()], 0.1, 0.9, 0.2, 0.3, 0.4, True, *[False] * 3, 2.0, HALF, FLOAT, HALF, True)
    assert (rmsprop.loss_scaling, rmsprop.use_tf_variant) == (2.0, True)
    lamb = optim.LAMB([parameter()], 0.1, (0.5, 0.6), 0.2, 0.3, False, 2.0, 7.0, HALF, FLOAT, HALF)
    assert group_values(lamb, "betas", "max_weight_norm") == {"betas": (0.5, 0.6), "max_weight_norm": 7.0}
    assert (lamb.bias_correction, lamb.loss_scaling) == (False, 2.0)
    assert [getattr(lamb, name) for name in MOMENTS] == [HALF, FLOAT, HALF]


def test_a_positional_maximize_is_no_loss_scaling() -> None:
    sgd = optim.SGD([parameter()], 0.1, 0.9, 0.0, 0.0, False, False)
    assert (sgd.loss_scaling, sgd.param_groups[0]["maximize"]) == (1.0, False)


@pytest.mark.parametrize("name", MAKERS)
def test_every_class_is_a_pytorch_optimizer_with_the_mixin_first(name: str) -> None:
    kind = getattr(optim, name)
    native = getattr(torch.optim, name, torch.optim.Optimizer)
    assert kind.__bases__ == (optim.Optimizer, native)


@pytest.mark.parametrize("name", MAKERS)
def test_groups_override_and_inherit(name: str) -> None:
    optimizer = MAKERS[name]([{"params": [parameter()], "lr": 0.5, "weight_decay": 0.25}, {"params": [parameter()]}])
    first, second = optimizer.param_groups
    assert (first["lr"], first["weight_decay"]) == (0.5, 0.25)
    assert (second["lr"], second["weight_decay"]) == (
        optimizer.defaults["lr"],
        optimizer.defaults["weight_decay"],
    )


def test_velocity_scaling_belongs_to_the_combined_variant() -> None:
    groups = [{"params": [parameter()], "velocity_scaling": 2.0}, {"params": [parameter()]}]
    combined = optim.SGD(groups, lr=0.1, velocity_scaling=16.0, use_combined_accum=True)
    assert [group["velocity_scaling"] for group in combined.param_groups] == [2.0, 16.0]
    combined.add_param_group({"params": [parameter()]})
    assert combined.param_groups[2]["velocity_scaling"] == 16.0
    with log_lines() as lines:
        separate = optim.SGD([parameter()], lr=0.1, velocity_scaling=16.0)
    assert any("velocity_scaling is ignored" in line for line in lines)
    assert "velocity_scaling" not in separate.defaults
    assert "velocity_scaling" not in separate.param_groups[0]


@pytest.mark.parametrize(
    ("name", "argument"),
    [("SGD", "accum_type"), ("SGD", "velocity_accum_type"),
     *((name, argument) for name in ("Adam", "AdamW", "RMSprop", "LAMB") for argument in MOMENTS)],
)  # fmt: skip
def test_accumulators_are_float32_or_float16(name: str, argument: str) -> None:
    assert getattr(MAKERS[name]([parameter()], **{argument: HALF}), argument) is HALF
    for wrong in (torch.float64, torch.bfloat16, torch.int32):
        message = "Accumulation types must be either torch.float32 or torch.float16"
        with pytest.raises(AssertionError, match=message):
            MAKERS[name]([parameter()], **{argument: wrong})


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("SGD", "lr"), ("SGD", "momentum"), ("SGD", "loss_scaling"), ("SGD", "velocity_scaling"),
        ("SGD", "max_grad_norm"), ("Adam", "eps"), ("AdamW", "weight_decay"), ("AdamW", "max_grad_norm"),
        ("RMSprop", "alpha"), ("RMSprop", "loss_scaling"), ("LAMB", "max_weight_norm"), ("LAMB", "lr"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", ["0.1", torch.tensor(0.1), [0.1]])
def test_hyper_parameters_are_numbers(name: str, argument: str, value: Any) -> None:
    with pytest.raises(AssertionError, match=f"Expected a number for {argument}"):
        MAKERS[name]([parameter()], **{argument: value})


@pytest.mark.parametrize("name", ["Adam", "AdamW", "LAMB"])
def test_betas_are_a_pair_of_numbers(name: str) -> None:
    for wrong in (0.9, [0.9, 0.999], (0.9,), (0.9, 0.99, 0.999)):
        with pytest.raises(AssertionError, match="tuple of two numbers for betas"):
            MAKERS[name]([parameter()], betas=wrong)
    with pytest.raises(AssertionError, match=r"Expected a number for betas\[1\]"):
        MAKERS[name]([parameter()], betas=(0.9, "0.999"))
    assert MAKERS[name]([parameter()], betas=(0, 0.9)).defaults["betas"] == (0.0, 0.9)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("argument", ["lr", "weight_decay"])
def test_pytorchs_own_checks_apply(name: str, argument: str) -> None:
    with pytest.raises(ValueError, match="Invalid"):
        MAKERS[name]([parameter()], **{argument: -0.1})


def test_pytorchs_check_of_nesterov_momentum_applies() -> None:
    with pytest.raises(ValueError, match="Nesterov momentum requires a momentum and zero dampening"):
        optim.SGD([parameter()], lr=0.1, nesterov=True)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "LAMB"])
def test_betas_must_be_in_range(name: str) -> None:
    with pytest.raises(ValueError, match="Invalid beta parameter at index 1"):
        MAKERS[name]([parameter()], betas=(0.9, 1.0))


def test_sgd_needs_a_learning_rate() -> None:
    with pytest.raises(TypeError, match="lr"):
        optim.SGD([parameter()])  # type: ignore[call-arg] # on purpose


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop"])
def test_pytorchs_switches_are_accepted(name: str) -> None:
    optimizer = MAKERS[name]([parameter()], foreach=False, maximize=False, differentiable=False)
    assert optimizer.param_groups[0]["foreach"] is False
