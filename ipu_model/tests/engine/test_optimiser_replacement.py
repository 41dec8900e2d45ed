"""What may change once a program is compiled (poptorch-optim.md, section 6)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from optimiser_support import spec_of, updater_of

from ipu_model.errors import Error
from ipu_model.optimiser import FAMILIES, Hyper, OptimiserSpec

ALL = frozenset({"lr", "momentum", "dampening", "weight_decay", "velocity_scaling", "betas", "eps", "alpha"})
BASE = Hyper(lr=0.1, momentum=0.9)
CHANGED: dict[str, Any] = {
    "lr": 0.2, "momentum": 0.5, "dampening": 0.25, "weight_decay": 0.1, "velocity_scaling": 2.0,
    "betas": (0.8, 0.99), "eps": 1e-4, "alpha": 0.9, "max_weight_norm": 1.0, "nesterov": True,
}  # fmt: skip
EVERY_ATTRIBUTE = [(family, name) for family, names in FAMILIES.items() for name in names]


def set_spec(old: OptimiserSpec, new: OptimiserSpec, **options: Any) -> None:
    weights = {"w": torch.zeros(1)}
    updater = updater_of(old, weights, **options)
    try:
        updater.set_spec(new)
    except Error:
        assert updater.spec == old, "a refused optimiser must leave everything as it was"
        raise
    assert updater.spec == new


@pytest.mark.parametrize(("family", "attribute"), EVERY_ATTRIBUTE)
def test_a_constant_cannot_change(family: str, attribute: str) -> None:
    new = replace(BASE, **{attribute: CHANGED[attribute]})
    with pytest.raises(Error, match=f"Values are constant but do not match: {attribute} of group 0"):
        set_spec(spec_of(family, BASE), spec_of(family, new))


@pytest.mark.parametrize(("family", "attribute"), [pair for pair in EVERY_ATTRIBUTE if pair[1] != "nesterov"])
def test_a_variable_can_change_but_not_become_a_constant_nor_the_reverse(family: str, attribute: str) -> None:
    variable = replace(BASE, variable=frozenset({attribute}))
    changed = replace(variable, **{attribute: CHANGED[attribute]})
    set_spec(spec_of(family, variable), spec_of(family, changed))
    with pytest.raises(Error, match="Can not replace a constant value with a non constant value"):
        set_spec(spec_of(family, BASE), spec_of(family, variable))
    with pytest.raises(Error, match="Can not replace a non constant value with a constant value"):
        set_spec(spec_of(family, variable), spec_of(family, BASE))


def test_nesterov_is_compiled_in_even_when_marked_as_variable() -> None:
    variable = replace(BASE, variable=frozenset({"nesterov"}))
    with pytest.raises(Error, match="Values are constant but do not match: nesterov"):
        set_spec(spec_of("SGD2", variable), spec_of("SGD2", replace(variable, nesterov=True)))


def test_attributes_that_the_family_does_not_use_may_change() -> None:
    set_spec(spec_of("ADAM", BASE), spec_of("ADAM", replace(BASE, momentum=0.5, alpha=0.5)))


def test_loss_scaling_follows_the_same_rules() -> None:
    with pytest.raises(Error, match="Values are constant but do not match: loss_scaling of the optimiser"):
        set_spec(spec_of("SGD2", BASE), spec_of("SGD2", BASE, loss_scaling=2.0))
    variable = spec_of("SGD2", BASE, loss_scaling_variable=True)
    set_spec(variable, replace(variable, loss_scaling=2.0))
    with pytest.raises(Error, match="Can not replace a constant value with a non constant value"):
        set_spec(spec_of("SGD2", BASE), variable)


@pytest.mark.parametrize(("old", "new"), [("SGD1", "SGD2"), ("SGD2", "ADAM"), ("ADAMW", "ADAMW_NO_BIAS")])
def test_family_and_variant_are_compiled_in(old: str, new: str) -> None:
    with pytest.raises(Error, match=f"compiled {old} optimiser by one of type {new}"):
        set_spec(spec_of(old, BASE), spec_of(new, BASE))


@pytest.mark.parametrize(
    ("setting", "value", "public"),
    [
        ("max_grad_norm", 1.0, "max_grad_norm"),
        ("use_tf_variant", True, "use_tf_variant"),
        ("accum_dtype", torch.float16, "accum_type"),
        ("velocity_dtype", torch.float16, "velocity_accum_type"),
        ("first_dtype", torch.float16, "first_order_momentum_accum_type"),
        ("second_dtype", torch.float16, "second_order_momentum_accum_type"),
    ],
)
def test_other_settings_are_compiled_in(setting: str, value: Any, public: str) -> None:
    with pytest.raises(Error, match=f"Can not change {public} from"):
        set_spec(spec_of("SGD2", BASE), spec_of("SGD2", BASE, **{setting: value}))


def test_only_groups_with_compiled_weights_are_compared() -> None:
    other = replace(BASE, lr=0.5)
    set_spec(spec_of("SGD2", BASE, BASE), spec_of("SGD2", BASE, other), group_of={"w": 0})
    with pytest.raises(Error, match="lr of group 1"):
        set_spec(spec_of("SGD2", BASE, BASE), spec_of("SGD2", BASE, other), group_of={"w": 1})
    with pytest.raises(Error, match="lr of the defaults"):
        set_spec(spec_of("SGD2", BASE), replace(spec_of("SGD2", BASE), default=other), group_of={"w": None})


def test_a_compiled_group_must_exist_in_the_new_optimiser() -> None:
    with pytest.raises(Error, match="parameter group 1, but the new optimiser has only 1 groups"):
        set_spec(spec_of("SGD2", BASE, BASE), spec_of("SGD2", BASE), group_of={"w": 1})


def test_a_new_value_acts_from_the_next_step_on() -> None:
    weights = {"w": torch.ones(())}
    old = Hyper(lr=0.1, variable=ALL)
    updater = updater_of(spec_of("SGD2", old), weights)
    updater.step({"w": torch.tensor(2.0)}, 1.0)
    updater.set_spec(spec_of("SGD2", replace(old, lr=0.2)))
    updater.step({"w": torch.tensor(2.0)}, 1.0)
    assert weights["w"].item() == pytest.approx(1 - 0.2 - 0.4)
