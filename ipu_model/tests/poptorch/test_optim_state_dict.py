"""`state_dict` and `load_state_dict`: structure, reading, loading, copies (poptorch-optim.md, section 8).

What schedulers, `setOptimizer` and other executors make of them: test_executor_optimizer.py.
"""

from __future__ import annotations

import copy
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from executor_support import ONES, RATE, Scale, pickled, quiet, saved, scale, sgd
from optim_support import MAKERS, parameter

import poptorch
from poptorch import optim
from poptorch._optimizer_attributes import read_spec


def numbers(source: Any) -> tuple[float, float]:
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


class TestReading:
    def test_the_state_is_read_once_between_two_runs_and_can_be_taken_and_given_alone(self) -> None:
        _, optimizer, executor = scale(momentum=0.5)
        assert optimizer.get_state_dict() == {"ipu_state": None, "ipu_param": None}
        executor.compile(ONES)
        assert optimizer.has_state()
        reader = Mock(wraps=optimizer._reader)
        optimizer._bind(reader)
        for number, velocity in enumerate((0, 1, 1.5)):
            assert numbers(optimizer) == numbers(optimizer) == (velocity, RATE)
            assert reader.call_count == number, "a run by itself reads nothing"
            executor(ONES)
        part = optimizer.get_state_dict()
        assert part.keys() == {"ipu_state", "ipu_param"}
        del optimizer.state_dict()["ipu_state"]["Accl1___weight"]
        assert numbers(optimizer) == numbers(part) == (1.75, RATE), "editing what was returned changes nothing"
        executor(ONES)
        optimizer.set_state_dict(part)
        executor(ONES)
        assert numbers(optimizer) == (1.75 / 2 + 1, RATE)

    def test_the_last_state_is_kept_and_uploaded_at_the_next_attach(self) -> None:
        model, optimizer, executor = scale(momentum=0.5)
        executor(ONES)
        executor.detachFromDevice()
        assert numbers(optimizer) == (1, RATE)
        executor(ONES)
        assert numbers(optimizer) == (1.5, RATE)
        # In another executor it continues with its state, but with newer numbers, read from Python at wrapping.
        executor.destroy()
        assert numbers(optimizer) == (1.5, RATE)
        optimizer.param_groups[0]["lr"] = 2 * RATE
        poptorch.trainingModel(model, quiet(), optimizer)(ONES)
        assert numbers(optimizer) == (1.75, 2 * RATE)


class TestLoading:
    def test_before_compiling_it_uploads_at_the_first_attach(self) -> None:
        _, donor, executor = scale(momentum=0.5, lr=RATE / 2)
        executor(ONES)
        model, optimizer, executor = scale(momentum=0.5)
        loaded = copy.deepcopy(donor.state_dict())
        optimizer.load_state_dict(loaded)
        loaded["ipu_state"]["Accl1___weight"].fill_(0.0)  # loaded tensors are copies
        executor.compile(ONES)
        assert optimizer._pending is None
        assert numbers(optimizer) == (1, RATE / 2)
        executor(ONES)
        assert numbers(optimizer) == (1.5, RATE / 2)
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


OPTIONS: dict[str, dict[str, Any]] = {
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
        original: Any = MAKERS[name]([parameter()], **OPTIONS[name])
        original.variable_attrs.markAsVariable("weight_decay")
        original.variable_attrs.markAsConstant("lr")
        copied = duplicate(original)
        assert type(copied) is type(original)
        assert {**copied.defaults, **original.defaults} == copied.defaults  # PyTorch may add keys of its own
        assert read_spec(copied) == read_spec(original)
        for option, value in OPTIONS[name].items():
            assert (getattr(copied, option) if hasattr(copied, option) else copied.param_groups[0][option]) == value
        copied.variable_attrs.markAsVariable("lr")
        assert original.variable_attrs.isConstant("lr"), "the copy's marks are its own"

    def test_they_carry_the_devices_state_and_are_not_bound_to_the_device(self, duplicate: Any) -> None:
        _, original, executor = scale(momentum=0.5)
        executor(ONES)
        copied = duplicate(original)
        executor(ONES)
        assert numbers(copied) == (1, RATE)
        state = copied._take_pending()
        assert (state.state["Accl1___weight"].item(), state.parameters) == (1, None)
        # One that was loaded still has everything to upload.
        original = sgd(Scale(), momentum=0.5)
        original.load_state_dict(copied.state_dict())
        assert duplicate(original)._take_pending().parameters.keys() == copied.state_dict()["ipu_param"].keys()
