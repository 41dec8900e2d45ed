"""Constant and variable attributes (poptorch-optim.md, section 6)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from optim_support import MAKERS, parameter

from poptorch import optim
from poptorch._optimizer_attributes import read_spec


def variables(optimizer: torch.optim.Optimizer) -> set[str]:
    """Return the attributes that reach the device as variables."""
    spec = read_spec(optimizer)
    names = set(spec.groups[0].variable)
    return names | {"loss_scaling"} if spec.loss_scaling_variable else names


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"lr"}),  # the reference's first two examples
        ({"momentum": 0.0, "loss_scaling": 2.0}, {"lr", "momentum", "loss_scaling"}),
        ({"dampening": 0.0, "weight_decay": 0.0}, {"lr", "dampening", "weight_decay"}),
        ({"velocity_scaling": 2.0, "use_combined_accum": True}, {"lr", "velocity_scaling"}),
        ({"use_combined_accum": True, "max_grad_norm": 1.0, "accum_type": torch.float16}, {"lr"}),
    ],
)
def test_what_was_passed_to_poptorchs_sgd_is_variable_whatever_its_value(
    given: dict[str, Any], expected: set[str]
) -> None:
    assert variables(optim.SGD([parameter()], lr=0.1, **given)) == expected


@pytest.mark.parametrize("name", ["Adam", "AdamW", "RMSprop", "LAMB"])
def test_even_the_learning_rate_is_constant_if_it_was_not_passed(name: str) -> None:
    assert variables(MAKERS[name]([parameter()])) == set()
    assert variables(MAKERS[name]([parameter()], lr=1e-3, loss_scaling=1.0)) == {"lr", "loss_scaling"}


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.0), {"lr"}),  # the reference's last two examples
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=1.0), {"lr", "momentum"}),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True), {"lr", "momentum"}),
        (
            lambda p: torch.optim.SGD(p, lr=0.1, dampening=0.5, weight_decay=0.1),
            {"lr", "dampening", "weight_decay"},
        ),
        (lambda p: torch.optim.Adam(p, betas=(0.5, 0.6), weight_decay=0.0), {"lr"}),
        (lambda p: torch.optim.Adam(p, eps=1e-6, weight_decay=0.01), {"lr", "eps", "weight_decay"}),
        (lambda p: torch.optim.AdamW(p, weight_decay=0.01), {"lr"}),
        (lambda p: torch.optim.AdamW(p, weight_decay=0.0), {"lr", "weight_decay"}),
        (lambda p: torch.optim.RMSprop(p, alpha=0.5), {"lr"}),
        (lambda p: torch.optim.RMSprop(p, momentum=0.5), {"lr", "momentum"}),
    ],
)
def test_native_optimizers_stream_the_rate_and_what_differs_from_the_default(make: Any, expected: set[str]) -> None:
    assert variables(make([parameter()])) == expected


def test_native_optimizers_differ_group_by_group() -> None:
    spec = read_spec(torch.optim.SGD([{"params": [parameter()], "momentum": 0.9}, {"params": [parameter()]}], lr=0.1))
    assert [sorted(group.variable) for group in spec.groups] == [["lr", "momentum"], ["lr"]]
    assert spec.default.variable == {"lr"}


def test_marking_an_attribute() -> None:
    sgd = optim.SGD([parameter()], lr=0.1, weight_decay=0.1)
    assert not sgd.variable_attrs.isConstant("weight_decay")
    sgd.variable_attrs.markAsConstant("weight_decay")
    assert sgd.variable_attrs.isConstant("weight_decay")
    sgd.variable_attrs.markAsVariable("momentum")
    sgd.variable_attrs.markAsVariable("loss_scaling")
    assert variables(sgd) == {"lr", "momentum", "loss_scaling"}
    assert isinstance(sgd.variable_attrs, optim.VariableAttributes)


@pytest.mark.parametrize("method", ["markAsConstant", "markAsVariable"])
@pytest.mark.parametrize("attribute", ["velocity_scaling", "alpha", "accum_type", "nonsense"])
def test_unknown_attributes_are_refused(method: str, attribute: str) -> None:
    separate = optim.SGD([parameter()], lr=0.1)
    with pytest.raises(AssertionError, match="Unknown attribute"):
        getattr(separate.variable_attrs, method)(attribute)


def test_an_unknown_attribute_is_constant() -> None:
    assert optim.SGD([parameter()], lr=0.1).variable_attrs.isConstant("nonsense")


def test_the_combined_variant_knows_velocity_scaling_and_lamb_the_weight_norm() -> None:
    combined = optim.SGD([parameter()], lr=0.1, use_combined_accum=True)
    assert combined.variable_attrs.isConstant("velocity_scaling")
    lamb = optim.LAMB([parameter()], max_weight_norm=3.0)
    lamb.variable_attrs.markAsConstant("max_weight_norm")
    assert variables(lamb) == set()
