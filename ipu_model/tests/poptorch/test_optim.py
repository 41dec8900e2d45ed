"""Optimisers from their constructors to what reaches the device, on the CPU, and their state (optim reference).

What schedulers, `setOptimizer` and other executors make of the state: test_executor_optimizer.py.
"""

from __future__ import annotations

import copy
import inspect
import logging
import math
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from executor_support import ONES, RATE, Scale, pickled, quiet, saved, scale, sgd

import poptorch
from ipu_model.step import FLOAT16, FLOAT32
from poptorch import Options, optim
from poptorch._optimizer_attributes import OptimizerAttrTracker, convertOptimizerToDict, group_of, read_spec

FLOAT, HALF = torch.float32, torch.float16
MOMENTS = {
    "accum_type": FLOAT, "first_order_momentum_accum_type": FLOAT, "second_order_momentum_accum_type": FLOAT
}  # fmt: skip
ADAMS = ("Adam", "AdamW", "LAMB")
NUMBERS = {
    "SGD": {"lr": 0.1, "momentum": 0, "dampening": 0, "weight_decay": 0, "nesterov": False},
    "Adam": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0, "amsgrad": False},
    "AdamW": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2, "amsgrad": False},
    "RMSprop": {"lr": 1e-2, "alpha": 0.99, "eps": 1e-8, "weight_decay": 0, "momentum": 0, "centered": False},
    "LAMB": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2, "max_weight_norm": 65500.0},
}
DEVICE = {
    "SGD": {"use_combined_accum": False, "accum_type": FLOAT, "velocity_accum_type": FLOAT, "max_grad_norm": math.inf},
    "Adam": {**MOMENTS, "max_grad_norm": math.inf},
    "AdamW": {**MOMENTS, "bias_correction": True, "max_grad_norm": math.inf},
    "RMSprop": {**MOMENTS, "use_tf_variant": False},
    "LAMB": {**MOMENTS, "bias_correction": True, "max_weight_norm": 65500.0},
}
# An argument for every parameter of a constructor.
GIVEN: dict[str, Any] = {
    "lr": 0.1, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.2, "nesterov": True, "betas": (0.5, 0.6),
    "eps": 0.2, "alpha": 0.8, "centered": True, "loss_scaling": 8.0, "velocity_scaling": 4.0,
    "use_combined_accum": True, "accum_type": HALF, "velocity_accum_type": FLOAT, "max_grad_norm": 1.5,
    "bias_correction": False, "first_order_momentum_accum_type": FLOAT, "second_order_momentum_accum_type": HALF,
    "use_tf_variant": True, "max_weight_norm": 7.0,
}  # fmt: skip

MAKERS: dict[str, Any] = {
    "SGD": lambda params, **given: optim.SGD(params, **{"lr": 0.1, **given}),
    **{name: getattr(optim, name) for name in ("Adam", "AdamW", "RMSprop", "LAMB")},
}


def parameter(value: float = 1.0) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor(value))


def numbers_of(optimizer: torch.optim.Optimizer, names: Any) -> dict[str, Any]:
    return {name: optimizer.param_groups[0][name] for name in names}


def device_options(optimizer: Any) -> dict[str, Any]:
    names = {"loss_scaling", *(name for options in DEVICE.values() for name in options)}
    return {name: getattr(optimizer, name) for name in names if hasattr(optimizer, name)}


class TestConstructors:
    @pytest.mark.parametrize("name", MAKERS)
    def test_defaults_which_groups_override_and_inherit(self, name: str) -> None:
        optimizer = MAKERS[name]([parameter()])
        assert type(optimizer).__bases__ == (optim.Optimizer, getattr(torch.optim, name, torch.optim.Optimizer))
        assert numbers_of(optimizer, NUMBERS[name]) == NUMBERS[name]
        assert device_options(optimizer) == {"loss_scaling": 1.0, **DEVICE[name]}
        own = {"lr": 0.5, "weight_decay": 0.25}
        first, second = MAKERS[name]([{"params": [parameter()], **own}, {"params": [parameter()]}]).param_groups
        assert {argument: first[argument] for argument in NUMBERS[name]} == NUMBERS[name] | own
        assert {argument: second[argument] for argument in NUMBERS[name]} == NUMBERS[name]

    @pytest.mark.parametrize("name", MAKERS)
    def test_every_argument_is_kept(self, name: str) -> None:
        """Their order and what else there is: poptorch_names.md."""
        own = {"loss_scaling", *DEVICE[name]}
        names = {n for n in inspect.signature(getattr(optim, name)).parameters if n in GIVEN}
        assert names >= (own | set(NUMBERS[name])) - {"amsgrad"}
        switches = {} if name == "LAMB" else {"foreach": False, "maximize": False, "differentiable": False}
        given = {n: GIVEN[n] for n in names} | switches
        optimizer = getattr(optim, name)([parameter()], **given)
        assert numbers_of(optimizer, given.keys() - own) == {n: given[n] for n in given.keys() - own}
        assert device_options(optimizer) == {n: given[n] for n in own}
        if name in ADAMS:
            assert MAKERS[name]([parameter()], betas=(0, 0.9)).defaults["betas"] == (0.0, 0.9)

    def test_velocity_scaling_belongs_to_the_combined_variant(self, caplog: pytest.LogCaptureFixture) -> None:
        groups = [{"params": [parameter()], "velocity_scaling": 2.0}, {"params": [parameter()]}]
        combined = optim.SGD(groups, lr=0.1, velocity_scaling=16.0, use_combined_accum=True)
        combined.add_param_group({"params": [parameter()]})
        assert [group["velocity_scaling"] for group in combined.param_groups] == [2.0, 16.0, 16.0]
        separate = optim.SGD([parameter()], lr=0.1, velocity_scaling=16.0)
        assert "velocity_scaling is ignored" in caplog.text
        assert "velocity_scaling" not in separate.defaults | separate.param_groups[0]


MADE: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD2": lambda p: optim.SGD(p, lr=0.1),
    "SGD1": lambda p: optim.SGD(p, lr=0.1, use_combined_accum=True),
    "ADAM": optim.Adam, "ADAMW": optim.AdamW, "ADAMW_NO_BIAS": lambda p: optim.AdamW(p, bias_correction=False),
    "RMSPROP": optim.RMSprop, "RMSPROP_CENTERED": lambda p: optim.RMSprop(p, centered=True),
    "LAMB": optim.LAMB, "LAMB_NO_BIAS": lambda p: optim.LAMB(p, bias_correction=False),
    "SGD2 ": torch.optim.SGD, "ADAM ": torch.optim.Adam, "ADAMW ": torch.optim.AdamW,
    "ADAMW  ": lambda p: torch.optim.Adam(p, decoupled_weight_decay=True),
    "RMSPROP ": torch.optim.RMSprop, "RMSPROP_CENTERED ": lambda p: torch.optim.RMSprop(p, centered=True)
}  # fmt: skip


class TestReading:
    @pytest.mark.parametrize("family", MADE)
    def test_every_optimizer_has_its_family(self, family: str) -> None:
        assert read_spec(MADE[family]([parameter()])).family == family.strip()

    def test_numbers_come_from_groups_and_defaults_options_from_the_object(self) -> None:
        groups = [{"params": [parameter()], "lr": 0.5, "loss_scaling": 9.0}, {"params": [parameter()], "momentum": 0.9}]
        sgd = optim.SGD(groups, lr=0.1, loss_scaling=8.0, velocity_scaling=4.0, use_combined_accum=True,
                        accum_type=HALF, velocity_accum_type=HALF, max_grad_norm=2.0)  # fmt: skip
        spec = read_spec(sgd)
        assert [(g.lr, g.momentum, g.velocity_scaling) for g in spec.groups] == [(0.5, 0.0, 4.0), (0.1, 0.9, 4.0)]
        assert (spec.default.lr, spec.default.momentum) == (0.1, 0.0)
        assert (spec.loss_scaling, spec.loss_scaling_variable, spec.max_grad_norm) == (8.0, True, 2.0)
        assert (spec.accum_dtype, spec.velocity_dtype) == (FLOAT16, FLOAT16)
        assert read_spec(sgd) == spec
        sgd.param_groups[0]["lr"], sgd.loss_scaling = 0.2, 2.0
        assert (read_spec(sgd).groups[0].lr, read_spec(sgd).loss_scaling) == (0.2, 2.0)

    def test_the_other_families_are_read_completely(self) -> None:
        numbers: dict[str, Any] = {"lr": 0.1, "betas": (0.5, 0.6), "eps": 0.01, "weight_decay": 0.2}
        lamb = optim.LAMB(
            [{"params": [parameter()]}, {"params": [parameter()], "max_weight_norm": None}],
            **numbers, max_weight_norm=3.0, first_order_momentum_accum_type=HALF
        )  # fmt: skip
        spec = read_spec(lamb)
        assert {name: getattr(spec.groups[0], name) for name in numbers} == numbers
        assert [group.max_weight_norm for group in spec.groups] == [3.0, 3.0]
        assert (spec.first_dtype, spec.second_dtype) == (FLOAT16, FLOAT32)
        spec = read_spec(optim.RMSprop([parameter()], 0.1, 0.5, 0.01, 0.2, 0.3, use_tf_variant=True))
        hyper = spec.groups[0]
        assert (hyper.lr, hyper.alpha, hyper.eps, hyper.weight_decay, hyper.momentum) == (0.1, 0.5, 0.01, 0.2, 0.3)
        assert spec.use_tf_variant is True
        spec = read_spec(torch.optim.AdamW([parameter()]))
        assert (spec.loss_scaling, spec.loss_scaling_variable, spec.max_grad_norm) == (1.0, False, math.inf)

    @pytest.mark.parametrize("name", MAKERS)
    def test_what_was_corrupted_later_is_refused(self, name: str) -> None:
        optimizer: Any = MAKERS[name]([parameter()])
        optimizer.param_groups[0]["lr"] = "fast"
        with pytest.raises(AssertionError, match="Expected a number for lr, not 'fast'"):
            read_spec(optimizer)
        optimizer.param_groups[0]["lr"] = 0.1
        optimizer.loss_scaling = None
        with pytest.raises(AssertionError, match="Expected a number for loss_scaling"):
            read_spec(optimizer)
        optimizer.loss_scaling, optimizer.accum_type = 1.0, torch.float64
        with pytest.raises(ValueError, match=r"must be either torch\.float32 or torch\.float16, but accum_type is"):
            read_spec(optimizer)

    def test_every_parameter_finds_its_group(self) -> None:
        a, b, c, frozen = (parameter() for _ in range(4))
        sgd = optim.SGD([{"params": [a, frozen]}, {"params": [b]}], lr=0.1)
        names = {"a": a, "b": b, "c": c, "frozen": frozen, "tied to a": a}
        assert group_of(sgd, names) == {"a": 0, "b": 1, "c": None, "frozen": 0, "tied to a": 0}
        with pytest.raises(KeyError, match=r"Tensor 0 of parameter group 1.*no parameter of the model"):
            group_of(sgd, {"a": a, "frozen": frozen})

    def test_an_optimizer_as_poptorchs_native_part_gets_it(self) -> None:
        """Each number with whether it is constant: what was passed is not."""
        tracker = OptimizerAttrTracker(Options())
        sgd = optim.SGD([{"params": [parameter()], "lr": 0.5}], lr=0.1, momentum=0.9, accum_type=HALF)
        found = convertOptimizerToDict(sgd, tracker, Options(), False)
        assert found["optimizer_type"].name == "SGD2"
        assert found["defaults"] == {
            "learningRate": (0.1, False), "momentum": (0.9, False), "dampening": (0.0, True),
            "weightDecay": (0.0, True), "nesterov": (False, True)
        }  # fmt: skip
        assert found["groups"] == [{**found["defaults"], "learningRate": (0.5, False)}]
        assert (found["lossScaling"], found["accumType"], found["velocityAccumType"]) == ((1.0, True), True, False)
        adam = convertOptimizerToDict(optim.Adam([parameter()], betas=(0.5, 0.6)), tracker, Options(), False)
        assert (adam["defaults"]["beta1"], adam["defaults"]["beta2"]) == ((0.5, False), (0.6, False))


def add_scheduler(optimizer: torch.optim.Optimizer) -> None:
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)


def add_everywhere(optimizer: Any) -> None:
    optimizer.speed = 1
    optimizer.defaults["zeal"] = 2
    optimizer.param_groups[0].update(loss_scaling=4.0, velocity_scaling=8.0)
    optimizer.add_param_group({"params": [parameter()], "tag": "b", "hue": 1})


IGNORED = "Ignoring unexpected {} in SGD2 optimizer: {}"
INITIAL_RATE = [IGNORED.format("group 0 attribute", ["initial_lr"])]
EVERYWHERE = [
    IGNORED.format("optimizer attribute", ["speed"]),
    IGNORED.format("default group variable", ["zeal"]),
    IGNORED.format("group 0 attribute", ["loss_scaling", "velocity_scaling"]),
    IGNORED.format("group 1 attribute", ["hue", "zeal"]),
]


class TestWarnings:
    @pytest.mark.parametrize(
        ("change", "expected"), [(repr, []), (add_scheduler, INITIAL_RATE), (add_everywhere, EVERYWHERE)]
    )
    @pytest.mark.parametrize(("relaxed", "level"), [(False, "WARNING"), (True, "DEBUG")])
    def test_attributes_that_appear_later_are_told_once_relaxed_ones_at_debug_level(
        self, change: Any, expected: list[str], relaxed: bool, level: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A group that is added is measured by the first one; what was there at the hand-over is known."""
        options = Options()
        tracker = OptimizerAttrTracker(options.relaxOptimizerAttributesChecks() if relaxed else options)
        sgd = optim.SGD([{"params": [parameter()], "tag": "a"}], lr=0.1)
        with caplog.at_level(logging.DEBUG, "poptorch::python"):
            read_spec(sgd, tracker)
            change(sgd)
            for _ in range(2):
                read_spec(sgd, tracker)
            read_spec(torch.optim.SGD([{"params": [parameter()], "tag": "a"}], lr=0.1), tracker)
        assert [(r.levelname, r.getMessage()) for r in caplog.records] == [(level, line) for line in expected]

    def test_subclasses_of_concrete_optimizers_are_warned_of(self, caplog: pytest.LogCaptureFixture) -> None:
        mine, mine_too = (type("Mine", (base,), {}) for base in (torch.optim.AdamW, optim.LAMB))
        for make in MADE.values():
            read_spec(make([parameter()]))
        for kind, family in ((mine, "ADAMW"), (mine_too, "LAMB")):
            tracker = OptimizerAttrTracker(Options())
            assert [read_spec(kind([parameter()]), tracker).family for _ in range(2)] == [family] * 2
        read_spec(torch.optim.SGD([parameter()], lr=0.1, maximize=True))
        *subclasses, last = caplog.messages
        assert ["Poptorch does not run Python optimizer code directly" in line for line in subclasses] == [True, True]
        assert "maximize=True is ignored" in last


def variables(optimizer: torch.optim.Optimizer) -> set[str]:
    """Return the attributes that reach the device as variables."""
    spec = read_spec(optimizer)
    return set(spec.groups[0].variable) | ({"loss_scaling"} if spec.loss_scaling_variable else set())


STREAMED: list[tuple[Any, set[str]]] = [
    # Of PopTorch's own ones what was passed, whatever its value.
    (lambda p: optim.SGD(p, lr=0.1), {"lr"}),
    (lambda p: optim.SGD(p, lr=0.1, momentum=0.0, loss_scaling=2.0), {"lr", "momentum", "loss_scaling"}),
    (lambda p: optim.SGD(p, 0.1, dampening=0.0, weight_decay=0.0), {"lr", "dampening", "weight_decay"}),
    (lambda p: optim.SGD(p, 0.1, velocity_scaling=2.0, use_combined_accum=True), {"lr", "velocity_scaling"}),
    (lambda p: optim.SGD(p, 0.1, use_combined_accum=True, max_grad_norm=1.0, accum_type=HALF), {"lr"}),
    *((MAKERS[name], set()) for name in MAKERS if name != "SGD"),
    *((lambda p, name=n: MAKERS[name](p, lr=1e-3, loss_scaling=1.0), {"lr", "loss_scaling"}) for n in MAKERS),
    # Of native ones the rate, and what differs from the default.
    (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.0), {"lr"}),
    (lambda p: torch.optim.SGD(p, lr=0.1, momentum=1.0), {"lr", "momentum"}),
    (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True), {"lr", "momentum"}),
    (lambda p: torch.optim.SGD(p, 0.1, dampening=0.5, weight_decay=0.1), {"lr", "dampening", "weight_decay"}),
    (lambda p: torch.optim.Adam(p, betas=(0.5, 0.6), weight_decay=0.0), {"lr"}),
    (lambda p: torch.optim.Adam(p, eps=1e-6, weight_decay=0.01), {"lr", "eps", "weight_decay"}),
    (lambda p: torch.optim.AdamW(p, weight_decay=0.01), {"lr"}),
    (lambda p: torch.optim.AdamW(p, weight_decay=0.0), {"lr", "weight_decay"}),
    (lambda p: torch.optim.RMSprop(p, alpha=0.5), {"lr"}),
    (lambda p: torch.optim.RMSprop(p, momentum=0.5), {"lr", "momentum"}),
]


class TestVariables:
    @pytest.mark.parametrize(("make", "expected"), STREAMED)
    def test_what_is_streamed(self, make: Any, expected: set[str]) -> None:
        assert variables(make([parameter()])) == expected

    def test_native_optimizers_differ_group_by_group(self) -> None:
        groups = [{"params": [parameter()], "momentum": 0.9}, {"params": [parameter()]}]
        spec = read_spec(torch.optim.SGD(groups, lr=0.1))
        assert [group.variable for group in (*spec.groups, spec.default)] == [{"lr", "momentum"}, {"lr"}, {"lr"}]

    def test_marking_an_attribute(self) -> None:
        sgd = optim.SGD([parameter()], lr=0.1, weight_decay=0.1)
        assert not sgd.variable_attrs.isConstant("weight_decay")
        for _ in range(2):
            sgd.variable_attrs.markAsConstant("weight_decay")
            sgd.variable_attrs.markAsVariable("momentum")
        sgd.variable_attrs.markAsVariable("loss_scaling")
        assert sgd.variable_attrs.isConstant("weight_decay")
        assert sgd.variable_attrs.isConstant("nonsense")
        assert variables(sgd) == {"lr", "momentum", "loss_scaling"}
        assert isinstance(sgd.variable_attrs, optim.VariableAttributes)
        combined = optim.SGD([parameter()], lr=0.1, use_combined_accum=True)
        assert combined.variable_attrs.isConstant("velocity_scaling")
        lamb = optim.LAMB([parameter()], max_weight_norm=3.0)
        lamb.variable_attrs.markAsConstant("max_weight_norm")
        assert variables(lamb) == set()


FEATURES, LABELS = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) for shape in ((16, 5), (16,)))


def train(make: Any) -> torch.Tensor:
    """Return the weights after a few full-batch steps of a linear regression."""
    weight = torch.nn.Parameter(torch.ones(5))
    optimizer = make([weight])
    for _ in range(4):
        optimizer.zero_grad()
        ((FEATURES @ weight - LABELS) ** 2).mean().backward()
        optimizer.step()
    return weight.detach()


def lamb_by_the_book(lr: float, wd: float, limit: float, corrects: bool) -> torch.Tensor:
    """Train by the formulas of section 4.5, literally, in float64."""
    x, w, m, s = FEATURES.double(), torch.ones(5).double(), 0.0, 0.0
    for t in range(1, 5):
        g = 2 / 16 * x.T @ (x @ w - LABELS)
        m, s = 0.9 * m + 0.1 * g, 0.999 * s + 0.001 * g * g
        mc, sc = (m / (1 - 0.9**t), s / (1 - 0.999**t)) if corrects else (m, s)
        direction = mc / (sc.sqrt() + 1e-8) + wd * w
        w = w - lr * min(w.norm().item(), limit) / direction.norm() * direction
    return w.float()


class TestOnTheCpu:
    @pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop"])
    def test_stepping_by_hand_equals_pytorch(self, name: str) -> None:
        shared: dict[str, Any] = {"lr": 0.05, "weight_decay": 0.1}
        if name in ("SGD", "RMSprop"):
            shared["momentum"] = 0.9
        own = {"loss_scaling": 128.0, "accum_type": torch.float16}  # options of the device are ignored here
        actual = train(lambda p: MAKERS[name](p, **shared, **own))
        assert torch.equal(actual, train(lambda p: getattr(torch.optim, name)(p, **shared)))

    @pytest.mark.parametrize("corrects", [True, False])
    @pytest.mark.parametrize("limit", [None, 0.5])
    def test_lamb_steps_by_its_formula(self, corrects: bool, limit: float | None) -> None:
        """The limit on the weight norm is the attribute, not the groups'."""
        own = {"weight_decay": 0.1, "bias_correction": corrects, "max_weight_norm": limit}
        actual = train(lambda p: optim.LAMB([{"params": p, "max_weight_norm": 1e-6}], 0.05, **own))
        expected = lamb_by_the_book(0.05, 0.1, 65500.0 if limit is None else limit, corrects)
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)

    def test_lamb_keeps_its_host_state_in_the_state_dict_and_returns_the_closures_loss(self) -> None:
        weight, idle = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
        lamb = optim.LAMB([weight, idle], lr=0.1)

        def closure() -> float:
            (weight**2).sum().backward()
            return 3.0

        assert lamb.step(closure) == 3.0
        assert idle.detach().tolist() == [1.0, 1.0, 1.0]
        (state,) = lamb.state_dict()["state"].values()
        assert state.keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert (state["step"].item(), lamb.state_dict()["ipu_state"]) == (1.0, None)


# The state of the device in `state_dict` and `load_state_dict` (section 8).


def of_device(source: Any) -> tuple[float, float]:
    """Return velocity and rate in an optimiser or a state dict: of momentum 0.5, the velocities are 1, 1.5, 1.75."""
    found = source if isinstance(source, dict) else source.state_dict()
    rate = found["ipu_param"]["scaledLearningRate2___specific___weight"]
    return found["ipu_state"]["Accl1___weight"].item(), rate.item()


@pytest.mark.parametrize("name", MAKERS)
def test_before_compiling_there_is_no_device_state(name: str) -> None:
    optimizer: Any = MAKERS[name]([parameter()], lr=0.5)
    optimizer._unbind()
    optimizer._invalidate()
    assert optimizer._take_pending() is None
    assert not optimizer.has_state()
    state_dict = optimizer.state_dict()
    groups = state_dict.pop("param_groups")
    assert state_dict == {"ipu_state": None, "ipu_param": None, "state": {}}
    assert groups[0]["lr"] == 0.5


class TestReadingState:
    def test_the_state_is_read_once_between_two_runs_and_can_be_taken_and_given_alone(self) -> None:
        _, optimizer, executor = scale(momentum=0.5)
        assert optimizer.get_state_dict() == {"ipu_state": None, "ipu_param": None}
        executor.compile(ONES)
        assert optimizer.has_state()
        reader = Mock(wraps=optimizer._reader)
        optimizer._bind(reader)
        for number, velocity in enumerate((0, 1, 1.5)):
            assert of_device(optimizer) == of_device(optimizer) == (velocity, RATE)
            assert reader.call_count == number, "a run by itself reads nothing"
            executor(ONES)
        part = optimizer.get_state_dict()
        assert part.keys() == {"ipu_state", "ipu_param"}
        del optimizer.state_dict()["ipu_state"]["Accl1___weight"]
        assert of_device(optimizer) == of_device(part) == (1.75, RATE), "editing what was returned changes nothing"
        executor(ONES)
        optimizer.set_state_dict(part)
        executor(ONES)
        assert of_device(optimizer) == (1.75 / 2 + 1, RATE)

    def test_the_last_state_is_kept_and_uploaded_at_the_next_attach(self) -> None:
        model, optimizer, executor = scale(momentum=0.5)
        executor(ONES)
        executor.detachFromDevice()
        assert of_device(optimizer) == (1, RATE)
        executor(ONES)
        assert of_device(optimizer) == (1.5, RATE)
        # In another executor it continues with its state, but with newer numbers, read from Python at wrapping.
        executor.destroy()
        assert of_device(optimizer) == (1.5, RATE)
        optimizer.param_groups[0]["lr"] = 2 * RATE
        poptorch.trainingModel(model, quiet(), optimizer)(ONES)
        assert of_device(optimizer) == (1.75, 2 * RATE)


class TestLoadingState:
    def test_before_compiling_it_uploads_at_the_first_attach(self) -> None:
        _, donor, executor = scale(momentum=0.5, lr=RATE / 2)
        executor(ONES)
        model, optimizer, executor = scale(momentum=0.5)
        loaded = copy.deepcopy(donor.state_dict())
        optimizer.load_state_dict(loaded)
        loaded["ipu_state"]["Accl1___weight"].fill_(0.0)  # loaded tensors are copies
        executor.compile(ONES)
        assert optimizer._pending is None
        assert of_device(optimizer) == (1, RATE / 2)
        executor(ONES)
        assert of_device(optimizer) == (1.5, RATE / 2)
        assert model.weight.item() == 1 - RATE / 2 * 1.5

    def test_it_restores_the_groups(self) -> None:
        optimizer = sgd(Scale(), momentum=0.9)
        source = optim.SGD([parameter()], lr=0.7, momentum=0.3)
        torch.optim.lr_scheduler.LambdaLR(source, lambda step: 0.5)
        optimizer.load_state_dict(source.state_dict())
        group = optimizer.param_groups[0]
        assert (group["lr"], group["momentum"], group["initial_lr"]) == (0.35, 0.3, 0.7)
        assert optimizer._pending is None, "a state dict from before compiling has nothing for the device"

    def test_other_dictionaries_are_refused_and_change_nothing(self) -> None:
        optimizer = sgd(Scale(), momentum=0.9)
        two = optim.SGD([{"params": [parameter()]}, {"params": [parameter()]}], lr=0.1)
        native = torch.optim.SGD([parameter()], lr=0.1)
        for wrong, error, words in (
            ({}, RuntimeError, "because it is empty"),
            (native.state_dict(), RuntimeError, "Only IPU optimizer states can be loaded onto the IPU"),
            ({**two.state_dict(), "ipu_state": {}, "ipu_param": {}}, ValueError, "different number of parameter group"),
        ):
            with pytest.raises(error, match=words):
                optimizer.load_state_dict(wrong)
        assert optimizer.state_dict()["ipu_state"] is None


COPIED: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.5, "loss_scaling": 4.0, "velocity_scaling": 2.0, "use_combined_accum": True,
            "accum_type": torch.float16, "max_grad_norm": 3.0},
    "Adam": {"lr": 0.2, "loss_scaling": 4.0, "first_order_momentum_accum_type": torch.float16, "max_grad_norm": 3.0},
    "AdamW": {"lr": 0.2, "bias_correction": False, "second_order_momentum_accum_type": torch.float16},
    "RMSprop": {"lr": 0.2, "centered": True, "use_tf_variant": True, "accum_type": torch.float16},
    "LAMB": {"lr": 0.2, "bias_correction": False, "max_weight_norm": 3.0, "loss_scaling": 4.0},
}  # fmt: skip


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickled, saved])
class TestCopies:
    @pytest.mark.parametrize("name", MAKERS)
    def test_they_keep_groups_defaults_variables_and_options(self, name: str, duplicate: Any) -> None:
        original: Any = MAKERS[name]([parameter()], **COPIED[name])
        original.variable_attrs.markAsVariable("weight_decay")
        original.variable_attrs.markAsConstant("lr")
        copied = duplicate(original)
        assert type(copied) is type(original)
        assert {**copied.defaults, **original.defaults} == copied.defaults  # PyTorch may add keys of its own
        assert read_spec(copied) == read_spec(original)
        for option, value in COPIED[name].items():
            assert (getattr(copied, option) if hasattr(copied, option) else copied.param_groups[0][option]) == value
        copied.variable_attrs.markAsVariable("lr")
        assert original.variable_attrs.isConstant("lr"), "the copy's marks are its own"

    def test_they_carry_the_devices_state_and_are_not_bound_to_the_device(self, duplicate: Any) -> None:
        _, original, executor = scale(momentum=0.5)
        executor(ONES)
        copied = duplicate(original)
        executor(ONES)
        assert of_device(copied) == (1, RATE)
        state = copied._take_pending()
        assert (state.state["Accl1___weight"].item(), state.parameters) == (1, None)
        # One that was loaded still has everything to upload.
        original = sgd(Scale(), momentum=0.5)
        original.load_state_dict(copied.state_dict())
        assert duplicate(original)._take_pending().parameters.keys() == copied.state_dict()["ipu_param"].keys()
