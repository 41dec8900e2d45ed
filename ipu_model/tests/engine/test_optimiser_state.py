"""What an optimiser keeps, and what of it may change once a program is compiled (poptorch-optim.md, 1, 6, 8)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from optimiser_support import assert_close, random_gradients, random_weights, spec_of, updater_of
from torch import Tensor

from ipu_model.errors import Error
from ipu_model.optimiser import FAMILIES, Hyper, OptimiserSpec

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
