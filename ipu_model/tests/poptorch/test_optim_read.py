"""What reaches the device of a Python optimiser; warnings and errors (poptorch-optim.md, 2.5 and 7)."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest
import torch
from optim_support import MAKERS, log_lines, parameter

from ipu_model.step import FLOAT16, FLOAT32
from poptorch import Options, optim
from poptorch._optimizer_attributes import (
    OptimizerAttrTracker,
    convertOptimizerToDict,
    group_of,
    read_spec,
)

HALF = torch.float16


@pytest.mark.parametrize(
    ("make", "family"),
    [
        (lambda p: optim.SGD(p, lr=0.1), "SGD2"),
        (lambda p: optim.SGD(p, lr=0.1, use_combined_accum=True), "SGD1"),
        (optim.Adam, "ADAM"),
        (optim.AdamW, "ADAMW"),
        (lambda p: optim.AdamW(p, bias_correction=False), "ADAMW_NO_BIAS"),
        (optim.RMSprop, "RMSPROP"),
        (lambda p: optim.RMSprop(p, centered=True), "RMSPROP_CENTERED"),
        (optim.LAMB, "LAMB"),
        (lambda p: optim.LAMB(p, bias_correction=False), "LAMB_NO_BIAS"),
        (torch.optim.SGD, "SGD2"),
        (torch.optim.Adam, "ADAM"),
        (torch.optim.AdamW, "ADAMW"),
        (lambda p: torch.optim.Adam(p, decoupled_weight_decay=True), "ADAMW"),
        (torch.optim.RMSprop, "RMSPROP"),
        (lambda p: torch.optim.RMSprop(p, centered=True), "RMSPROP_CENTERED"),
    ],
)
def test_every_optimizer_has_its_family(make: Any, family: str) -> None:
    assert read_spec(make([parameter()])).family == family


def test_numbers_come_from_groups_and_defaults_options_from_the_object() -> None:
    groups = [
        {"params": [parameter()], "lr": 0.5, "loss_scaling": 99.0},
        {"params": [parameter()], "momentum": 0.9},
    ]
    sgd = optim.SGD(groups, lr=0.1, loss_scaling=8.0, velocity_scaling=4.0, use_combined_accum=True,
                    accum_type=HALF, velocity_accum_type=HALF, max_grad_norm=2.0)  # fmt: skip
    spec = read_spec(sgd)
    assert [(g.lr, g.momentum, g.velocity_scaling) for g in spec.groups] == [(0.5, 0.0, 4.0), (0.1, 0.9, 4.0)]
    assert (spec.default.lr, spec.default.momentum) == (0.1, 0.0)
    assert (spec.loss_scaling, spec.loss_scaling_variable, spec.max_grad_norm) == (8.0, True, 2.0)
    assert (spec.accum_dtype, spec.velocity_dtype) == (FLOAT16, FLOAT16)


def test_the_adam_family_is_read_completely() -> None:
    spec = read_spec(
        optim.LAMB([parameter()], lr=0.1, betas=(0.5, 0.6), eps=0.01, weight_decay=0.2, max_weight_norm=3.0,
                   first_order_momentum_accum_type=HALF)
    )  # fmt: skip
    hyper = spec.groups[0]
    assert (hyper.lr, hyper.betas, hyper.eps, hyper.weight_decay, hyper.max_weight_norm) == (
        0.1, (0.5, 0.6), 0.01, 0.2, 3.0,
    )  # fmt: skip
    assert (spec.first_dtype, spec.second_dtype) == (FLOAT16, FLOAT32)


def test_a_group_without_limit_on_the_weight_norm_uses_the_default() -> None:
    lamb = optim.LAMB([{"params": [parameter()], "max_weight_norm": None}])
    assert read_spec(lamb).groups[0].max_weight_norm == 65500.0


def test_rmsprop_is_read_completely() -> None:
    rmsprop = optim.RMSprop([parameter()], 0.1, 0.5, 0.01, 0.2, 0.3, use_tf_variant=True)
    spec = read_spec(rmsprop)
    hyper = spec.groups[0]
    assert (hyper.lr, hyper.alpha, hyper.eps, hyper.weight_decay, hyper.momentum) == (
        0.1,
        0.5,
        0.01,
        0.2,
        0.3,
    )
    assert spec.use_tf_variant is True


def test_a_native_optimizer_has_no_scaling_and_no_clipping() -> None:
    spec = read_spec(torch.optim.AdamW([parameter()]))
    assert (spec.loss_scaling, spec.loss_scaling_variable, spec.max_grad_norm) == (1.0, False, math.inf)


def test_an_unchanged_optimizer_gives_an_equal_spec_and_an_edited_one_its_new_numbers() -> None:
    sgd = optim.SGD([parameter()], lr=0.1)
    before = read_spec(sgd)
    assert read_spec(sgd) == before
    sgd.param_groups[0]["lr"] = 0.2
    sgd.loss_scaling = 2.0
    assert (read_spec(sgd).groups[0].lr, read_spec(sgd).loss_scaling) == (0.2, 2.0)


# Errors


@pytest.mark.parametrize("make", [torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.LBFGS])
def test_other_families_are_refused(make: Any) -> None:
    with pytest.raises(AssertionError, match="Unsupported optimizer type"):
        read_spec(make([parameter()]))


@pytest.mark.parametrize("make", [optim.Adam, optim.AdamW, torch.optim.Adam, torch.optim.AdamW])
def test_amsgrad_is_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="Only non-amsgrad"):
        read_spec(make([parameter()], amsgrad=True))
    with pytest.raises(ValueError, match="Only non-amsgrad"):
        read_spec(make([{"params": [parameter()], "amsgrad": True}]))


@pytest.mark.parametrize("make", [optim.RMSprop, torch.optim.RMSprop])
def test_groups_must_agree_on_being_centred(make: Any) -> None:
    groups = [{"params": [parameter()], "centered": True}, {"params": [parameter()]}]
    with pytest.raises(AssertionError, match="same value for the 'centered' attribute"):
        read_spec(make(groups))


def test_groups_must_agree_on_decoupled_weight_decay() -> None:
    groups = [{"params": [parameter()], "decoupled_weight_decay": True}, {"params": [parameter()]}]
    with pytest.raises(ValueError, match="same decoupled_weight_decay"):
        read_spec(torch.optim.Adam(groups))


@pytest.mark.parametrize("name", MAKERS)
def test_a_number_that_was_corrupted_later_is_refused(name: str) -> None:
    optimizer = MAKERS[name]([parameter()])
    optimizer.param_groups[0]["lr"] = "fast"
    with pytest.raises(AssertionError, match="Expected a number for lr, not 'fast'"):
        read_spec(optimizer)
    optimizer.param_groups[0]["lr"] = 0.1
    optimizer.loss_scaling = None  # type: ignore[attr-defined] # corrupted on purpose
    with pytest.raises(AssertionError, match="Expected a number for loss_scaling"):
        read_spec(optimizer)


def test_a_tensor_as_learning_rate_names_the_way_out() -> None:
    with pytest.raises(AssertionError, match=r"Expected a number for lr.*Use float\(lr\)"):
        read_spec(torch.optim.SGD([parameter()], lr=torch.tensor(0.1)))


def test_an_accumulator_type_that_was_corrupted_later_is_a_value_error() -> None:
    adam = optim.Adam([parameter()])
    adam.accum_type = torch.float64  # type: ignore[attr-defined] # an option of the device
    with pytest.raises(ValueError, match=r"Accumulation types must be either torch\.float32 or torch\.float16"):
        read_spec(adam)


# Group membership


def test_every_parameter_finds_its_group() -> None:
    a, b, c, frozen = (parameter() for _ in range(4))
    frozen.requires_grad_(False)
    sgd = optim.SGD([{"params": [a, frozen]}, {"params": [b]}], lr=0.1)
    names = {"a": a, "b": b, "c": c, "frozen": frozen, "tied to a": a}
    assert group_of(sgd, names) == {"a": 0, "b": 1, "c": None, "frozen": 0, "tied to a": 0}


def test_a_foreign_tensor_is_a_key_error() -> None:
    mine, foreign = parameter(), parameter()
    with pytest.raises(KeyError, match=r"Tensor 0 of parameter group 1.*no parameter of the model"):
        group_of(optim.SGD([{"params": [mine]}, {"params": [foreign]}], lr=0.1), {"mine": mine})


# Warnings


def new_tracker(*, relax: bool = False) -> OptimizerAttrTracker:
    return OptimizerAttrTracker(Options().relaxOptimizerAttributesChecks(relax))


def read_twice(optimizer: torch.optim.Optimizer, change: Any, *, relax: bool = False) -> None:
    """Hand over, change, hand over twice: a warning comes once."""
    tracker = new_tracker(relax=relax)
    read_spec(optimizer, tracker)
    change(optimizer)
    read_spec(optimizer, tracker)
    read_spec(optimizer, tracker)


def add_scheduler(optimizer: torch.optim.Optimizer) -> None:
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)


def test_attributes_that_appear_later_are_warned_of_once() -> None:
    with log_lines() as lines:
        read_twice(optim.SGD([parameter()], lr=0.1), add_scheduler)
    assert lines == ["Ignoring unexpected group 0 attribute in SGD2 optimizer: ['initial_lr']"]


def test_a_scheduler_made_before_the_hand_over_gives_no_warning() -> None:
    optimizer = optim.SGD([parameter()], lr=0.1)
    add_scheduler(optimizer)
    with log_lines() as lines:
        read_twice(optimizer, lambda o: None)
    assert lines == []


def test_relaxed_checks_lower_the_warning_to_debug_level() -> None:
    with log_lines() as warnings, log_lines(logging.DEBUG) as debug:
        read_twice(optim.SGD([parameter()], lr=0.1), add_scheduler, relax=True)
    assert warnings == []
    assert debug == ["Ignoring unexpected group 0 attribute in SGD2 optimizer: ['initial_lr']"]


def test_the_three_places_are_named() -> None:
    def change(optimizer: torch.optim.Optimizer) -> None:
        optimizer.speed = 1  # type: ignore[attr-defined] # what a program may do
        optimizer.defaults["zeal"] = 2
        optimizer.param_groups[0].update(loss_scaling=4.0, velocity_scaling=8.0)

    with log_lines() as lines:
        read_twice(optim.SGD([parameter()], lr=0.1), change)
    assert lines == [
        "Ignoring unexpected optimizer attribute in SGD2 optimizer: ['speed']",
        "Ignoring unexpected default group variable in SGD2 optimizer: ['zeal']",
        "Ignoring unexpected group 0 attribute in SGD2 optimizer: ['loss_scaling', 'velocity_scaling']",
    ]


def test_another_optimizer_of_the_same_family_brings_no_warning() -> None:
    tracker = new_tracker()
    with log_lines() as lines:
        read_spec(torch.optim.SGD([parameter()], lr=0.1), tracker)
        read_spec(optim.SGD([parameter()], lr=0.1), tracker)
    assert lines == []


def test_a_group_added_later_is_measured_by_the_first() -> None:
    sgd, tracker = optim.SGD([{"params": [parameter()], "tag": "a"}], lr=0.1), new_tracker()
    with log_lines() as lines:
        read_spec(sgd, tracker)
        sgd.add_param_group({"params": [parameter()], "tag": "b", "hue": 1})
        read_spec(sgd, tracker)
    assert lines == ["Ignoring unexpected group 1 attribute in SGD2 optimizer: ['hue']"]


def test_subclasses_of_concrete_optimizers_are_warned_of() -> None:
    class Mine(torch.optim.AdamW):
        def step(self, closure: Any = None) -> Any:
            raise RuntimeError("never called by the executor")

    class MineToo(optim.LAMB):
        pass

    class Allowed(optim.Optimizer, torch.optim.SGD):
        pass

    for kind, family in ((Mine, "ADAMW"), (MineToo, "LAMB")):
        tracker = new_tracker()
        with log_lines() as lines:
            for _ in range(2):
                assert read_spec(kind([parameter()]), tracker).family == family
        assert len(lines) == 1
        assert "Poptorch does not run Python optimizer code directly" in lines[0]
    with log_lines() as lines:
        for native in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop):
            read_spec(native([parameter()], lr=0.1))
        for make in MAKERS.values():
            read_spec(make([parameter()]))
    assert lines == []


def test_maximising_is_said_to_be_ignored() -> None:
    with log_lines() as lines:
        read_spec(torch.optim.SGD([parameter()], lr=0.1, maximize=True))
    assert any("maximize=True is ignored" in line for line in lines)


def test_an_optimizer_as_poptorchs_native_part_gets_it() -> None:
    """Each number with whether it is constant: what was passed is not."""
    sgd = optim.SGD([{"params": [parameter()], "lr": 0.5}], lr=0.1, momentum=0.9, accum_type=torch.float16)
    found = convertOptimizerToDict(sgd, new_tracker(), Options(), False)
    assert found["optimizer_type"].name == "SGD2"
    assert found["defaults"] == {
        "learningRate": (0.1, False), "momentum": (0.9, False), "dampening": (0.0, True), "weightDecay": (0.0, True),
        "nesterov": (False, True),
    }  # fmt: skip
    assert found["groups"] == [{**found["defaults"], "learningRate": (0.5, False)}]
    assert (found["lossScaling"], found["accumType"], found["velocityAccumType"]) == ((1.0, True), True, False)
    adam = convertOptimizerToDict(optim.Adam([parameter()], betas=(0.5, 0.6)), new_tracker(), Options(), False)
    assert (adam["defaults"]["beta1"], adam["defaults"]["beta2"]) == ((0.5, False), (0.6, False))
