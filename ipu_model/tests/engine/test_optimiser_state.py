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

MOMENTUM = Hyper(lr=0.1, momentum=0.9)
ZERO_BUT_VARIABLE = Hyper(lr=0.1, variable=frozenset({"momentum"}))


CONTINUED = [
    spec_of("SGD2", Hyper(lr=0.1, momentum=0.9, weight_decay=0.1), loss_scaling=8.0),
    spec_of("SGD1", Hyper(lr=0.1, momentum=0.9, weight_decay=0.1, velocity_scaling=2.0)),
    spec_of("ADAMW", Hyper(lr=0.1, eps=1e-3)),
    spec_of("LAMB", Hyper(lr=0.1, eps=1e-3)),
    spec_of("RMSPROP_CENTERED", MOMENTUM, use_tf_variant=True),
]


class TestState:
    """State and streamed scalars by name, and loading them."""

    @pytest.mark.parametrize(
        ("spec", "prefixes"),
        [
            (spec_of("SGD2", Hyper(lr=0.1)), set()),
            (spec_of("SGD1", Hyper(lr=0.1)), set()),
            (spec_of("SGD2", MOMENTUM), {"Accl1"}),
            (spec_of("SGD1", MOMENTUM), {"Accl1"}),
            (spec_of("SGD2", ZERO_BUT_VARIABLE), {"Accl1"}),
            (spec_of("ADAM", Hyper()), {"Accl1", "Accl2", "Step"}),
            (spec_of("ADAMW_NO_BIAS", Hyper()), {"Accl1", "Accl2", "Step"}),
            (spec_of("LAMB", Hyper()), {"Accl1", "Accl2", "Step"}),
            (spec_of("RMSPROP", Hyper()), {"Accl1"}),
            (spec_of("RMSPROP", MOMENTUM), {"Accl1", "Accl3"}),
            (spec_of("RMSPROP_CENTERED", MOMENTUM), {"Accl1", "Accl2", "Accl3"}),
        ],
    )
    @pytest.mark.parametrize("tensorflow", [False, True])
    def test_each_family_keeps_its_state(self, spec: OptimiserSpec, prefixes: set[str], tensorflow: bool) -> None:
        """State starts at zero; the average square of TensorFlow's RMSprop at one."""
        state = updater_of(replace(spec, use_tf_variant=tensorflow), {"layer.weight": torch.ones(2, 3)}).state
        assert set(state) == {f"{prefix}___layer.weight" for prefix in prefixes}
        for name, tensor in state.items():
            assert tensor.shape == (() if name.startswith("Step") else (2, 3))
            starts_at_one = tensorflow and "RMSPROP" in spec.family and name.startswith("Accl1")
            assert (tensor == float(starts_at_one)).all()

    def test_velocity_is_needed_group_by_group(self) -> None:
        spec = spec_of("SGD2", Hyper(lr=0.1), MOMENTUM)
        weights = {"plain": torch.zeros(1), "heavy": torch.zeros(1)}
        assert set(updater_of(spec, weights, group_of={"plain": 0, "heavy": 1}).state) == {"Accl1___heavy"}

    def test_state_is_read_in_the_dtypes_of_the_device_and_as_copies(self) -> None:
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

    @pytest.mark.parametrize(
        ("family", "numbers"),
        [
            (
                "SGD2",
                {"scaledLearningRate0": 0.0625, "weightDecayScaleFactor0": 0.9375},
            ),
            *((family, {"learningRate": 0.5, "weightDecay": 0.25}) for family in ("ADAM", "ADAMW", "LAMB", "RMSPROP")),
        ],
    )
    def test_numbers_are_streamed_for_each_weight(self, family: str, numbers: dict[str, float]) -> None:
        """Plain SGD streams lr*(1-dm)/ls and 1-lr*(1-dm)*wd (section 8.1), those of the Adam family are as they are."""
        hyper = Hyper(lr=0.5, dampening=0.5, weight_decay=0.25)
        parameters = updater_of(spec_of(family, hyper, loss_scaling=4.0), {"a.b": torch.ones(1)}).parameters()
        expected = {f"{name}___specific___a.b": value for name, value in numbers.items()} | {"lossScaling_FLOAT": 4.0}
        streamed = {name: tensor.item() for name, tensor in parameters.items()}
        assert expected.items() <= streamed.items()
        assert family != "SGD2" or expected == streamed
        assert all(tensor.shape == () and tensor.dtype == torch.float32 for tensor in parameters.values())

    @pytest.mark.parametrize("spec", CONTINUED, ids=lambda spec: spec.family)
    def test_training_continues_from_a_checkpoint(self, spec: OptimiserSpec) -> None:
        gradients = random_gradients(1, 4)

        def train(weights: dict[str, Tensor], steps: list[dict[str, Tensor]], checkpoint: Any = None) -> Any:
            updater = updater_of(spec, weights)
            if checkpoint is not None:
                assert updater.load_state(*checkpoint) == []
            for step in steps:
                updater.step({name: g.clone() for name, g in step.items()}, 1.0)
            return updater.read_state(), updater.parameters()

        at_once, in_two = random_weights(0), random_weights(0)
        train(at_once, gradients)
        train(in_two, gradients[2:], train(in_two, gradients[:2]))
        assert_close(in_two, at_once, tolerance=1e-6)

    def test_a_checkpoint_from_before_the_first_update_is_a_fresh_start(self) -> None:
        """The combined tensor receives the decay with the first update, also after its zeros were loaded."""
        spec = spec_of("SGD1", Hyper(lr=0.1, momentum=0.9, weight_decay=0.5))
        weights = {"w": torch.ones(())}
        updater = updater_of(spec, weights)
        updater.load_state(updater.read_state(), updater.parameters())
        updater.step({"w": torch.tensor(2.0)}, 1.0)
        assert weights["w"].item() == pytest.approx(1 - 0.1 * (2 + 0.5))

    def test_loaded_scalars_are_used_until_the_next_spec(self) -> None:
        weights = {"w": torch.zeros(())}
        variable = frozenset({"lr"})
        spec = spec_of("SGD2", Hyper(lr=1.0, variable=variable))
        updater = updater_of(spec, weights)
        donor = updater_of(spec_of("SGD2", Hyper(lr=0.5, variable=variable), loss_scaling=2.0), {"w": torch.zeros(())})
        assert updater.load_state(None, donor.parameters()) == []
        assert updater.loss_scaling == 2.0
        updater.step({"w": torch.tensor(2.0)}, 1.0)  # a gradient of 1, scaled by the loaded 2
        assert weights["w"].item() == -0.5
        updater.set_spec(spec)
        assert updater.loss_scaling == 1.0
        updater.step({"w": torch.tensor(1.0)}, 1.0)
        assert weights["w"].item() == -1.5

    def test_missing_and_unknown_entries_are_told_and_leave_the_rest_alone(self) -> None:
        updater = updater_of(spec_of("SGD2", MOMENTUM), {"a": torch.zeros(1), "b": torch.zeros(1)})
        updater.state["Accl1___b"].fill_(7.0)
        warnings = updater.load_state({"Accl1___a": torch.full((1,), 3.0), "Accl1___c": torch.zeros(1)}, {})
        assert updater.state["Accl1___a"].item() == 3.0
        assert updater.state["Accl1___b"].item() == 7.0
        assert any("ignoring missing state Accl1___b" in warning for warning in warnings)
        assert any("ignoring unexpected state Accl1___c" in warning for warning in warnings)
        assert any("ignoring missing parameter lossScaling_FLOAT" in warning for warning in warnings)

    def test_state_of_another_shape_is_refused_before_anything_changes(self) -> None:
        updater = updater_of(spec_of("SGD2", MOMENTUM), {"a": torch.zeros(1), "b": torch.zeros(2)})
        with pytest.raises(Error, match=r"Accl1___b has shape \(3,\).*needs \(2,\)"):
            updater.load_state({"Accl1___a": torch.ones(1), "Accl1___b": torch.ones(3)}, None)
        assert not updater.state["Accl1___a"].any()

    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            (spec_of("SGD2", MOMENTUM, loss_scaling=0.0), "Loss scaling cannot be 0"),
            (spec_of("SGD2", MOMENTUM, max_grad_norm=float("nan")), "max_grad_norm is NaN"),
            (spec_of("SGD1", Hyper(lr=0.1, velocity_scaling=0.0)), "Velocity scaling cannot be 0"),
            (spec_of("ADAGRAD", Hyper(lr=0.1)), "Unknown optimiser family 'ADAGRAD'"),
        ],
    )
    def test_values_that_no_device_can_run_with_are_refused(self, spec: OptimiserSpec, message: str) -> None:
        with pytest.raises(Error, match=message):
            updater_of(spec, {"w": torch.zeros(1)})
        with pytest.raises(Error, match=message):
            updater_of(spec_of("SGD2", MOMENTUM), {"w": torch.zeros(1)}).set_spec(spec)


ALL = frozenset({"lr", "momentum", "dampening", "weight_decay", "velocity_scaling", "betas", "eps", "alpha"})
BASE = Hyper(lr=0.1, momentum=0.9)
CHANGED: dict[str, Any] = {
    "lr": 0.2, "momentum": 0.5, "dampening": 0.25, "weight_decay": 0.1, "velocity_scaling": 2.0,
    "betas": (0.8, 0.99), "eps": 1e-4, "alpha": 0.9, "max_weight_norm": 1.0, "nesterov": True,
}  # fmt: skip
# Each attribute with one of the families that have it.
EVERY_ATTRIBUTE = {name: family for family, names in FAMILIES.items() for name in names}.items()


def set_spec(old: OptimiserSpec, new: OptimiserSpec, **options: Any) -> None:
    weights = {"w": torch.zeros(1)}
    updater = updater_of(old, weights, **options)
    try:
        updater.set_spec(new)
    except Error:
        assert updater.spec == old, "a refused optimiser must leave everything as it was"
        raise
    assert updater.spec == new


class TestReplacement:
    """Another optimiser for a compiled program."""

    @pytest.mark.parametrize(("attribute", "family"), EVERY_ATTRIBUTE)
    def test_a_constant_cannot_change(self, family: str, attribute: str) -> None:
        new = replace(BASE, **{attribute: CHANGED[attribute]})
        with pytest.raises(Error, match=f"Values are constant but do not match: {attribute} of group 0"):
            set_spec(spec_of(family, BASE), spec_of(family, new))

    @pytest.mark.parametrize(("attribute", "family"), [pair for pair in EVERY_ATTRIBUTE if pair[0] != "nesterov"])
    def test_a_variable_can_change_but_not_become_a_constant_nor_the_reverse(self, family: str, attribute: str) -> None:
        variable = replace(BASE, variable=frozenset({attribute}))
        changed = replace(variable, **{attribute: CHANGED[attribute]})
        set_spec(spec_of(family, variable), spec_of(family, changed))
        with pytest.raises(Error, match="Can not replace a constant value with a non constant value"):
            set_spec(spec_of(family, BASE), spec_of(family, variable))
        with pytest.raises(Error, match="Can not replace a non constant value with a constant value"):
            set_spec(spec_of(family, variable), spec_of(family, BASE))

    def test_nesterov_is_compiled_in_even_when_marked_as_variable(self) -> None:
        variable = replace(BASE, variable=frozenset({"nesterov"}))
        with pytest.raises(Error, match="Values are constant but do not match: nesterov"):
            set_spec(spec_of("SGD2", variable), spec_of("SGD2", replace(variable, nesterov=True)))

    def test_attributes_that_the_family_does_not_use_may_change(self) -> None:
        set_spec(spec_of("ADAM", BASE), spec_of("ADAM", replace(BASE, momentum=0.5, alpha=0.5)))

    def test_loss_scaling_follows_the_same_rules(self) -> None:
        with pytest.raises(Error, match="Values are constant but do not match: loss_scaling of the optimiser"):
            set_spec(spec_of("SGD2", BASE), spec_of("SGD2", BASE, loss_scaling=2.0))
        variable = spec_of("SGD2", BASE, loss_scaling_variable=True)
        set_spec(variable, replace(variable, loss_scaling=2.0))
        with pytest.raises(Error, match="Can not replace a constant value with a non constant value"):
            set_spec(spec_of("SGD2", BASE), variable)

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            (("SGD1", {}), ("SGD2", {}), "compiled SGD1 optimiser by one of type SGD2"),
            (("SGD2", {}), ("ADAM", {}), "compiled SGD2 optimiser by one of type ADAM"),
            (("ADAMW", {}), ("ADAMW_NO_BIAS", {}), "compiled ADAMW optimiser by one of type ADAMW_NO_BIAS"),
            *(
                (("SGD2", {}), ("SGD2", {setting: value}), f"Can not change {public} from")
                for setting, value, public in (
                    ("max_grad_norm", 1.0, "max_grad_norm"),
                    ("use_tf_variant", True, "use_tf_variant"),
                    ("accum_dtype", torch.float16, "accum_type"),
                    ("velocity_dtype", torch.float16, "velocity_accum_type"),
                    ("first_dtype", torch.float16, "first_order_momentum_accum_type"),
                    ("second_dtype", torch.float16, "second_order_momentum_accum_type"),
                )
            ),
        ],
    )
    def test_family_variant_and_other_settings_are_compiled_in(self, old: Any, new: Any, message: str) -> None:
        with pytest.raises(Error, match=message):
            set_spec(spec_of(old[0], BASE, **old[1]), spec_of(new[0], BASE, **new[1]))

    def test_only_groups_with_compiled_weights_are_compared(self) -> None:
        other = replace(BASE, lr=0.5)
        set_spec(spec_of("SGD2", BASE, BASE), spec_of("SGD2", BASE, other), group_of={"w": 0})
        with pytest.raises(Error, match="lr of group 1"):
            set_spec(spec_of("SGD2", BASE, BASE), spec_of("SGD2", BASE, other), group_of={"w": 1})
        with pytest.raises(Error, match="lr of the defaults"):
            set_spec(spec_of("SGD2", BASE), replace(spec_of("SGD2", BASE), default=other), group_of={"w": None})

    def test_a_compiled_group_must_exist_in_the_new_optimiser(self) -> None:
        with pytest.raises(Error, match="parameter group 1, but the new optimiser has only 1 groups"):
            set_spec(spec_of("SGD2", BASE, BASE), spec_of("SGD2", BASE), group_of={"w": 1})

    def test_a_new_value_acts_from_the_next_step_on(self) -> None:
        weights = {"w": torch.ones(())}
        old = Hyper(lr=0.1, variable=ALL)
        updater = updater_of(spec_of("SGD2", old), weights)
        updater.step({"w": torch.tensor(2.0)}, 1.0)
        updater.set_spec(spec_of("SGD2", replace(old, lr=0.2)))
        updater.step({"w": torch.tensor(2.0)}, 1.0)
        assert weights["w"].item() == pytest.approx(1 - 0.2 - 0.4)
