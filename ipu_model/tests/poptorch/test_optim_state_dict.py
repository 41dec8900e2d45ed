"""`state_dict` and `load_state_dict`: structure, timing, loading (poptorch-optim.md, section 8).

With a stand-in for an executor; test_executor_optimizer.py has the same rules with real ones.
"""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from optim_support import MAKERS, parameter

from poptorch import optim
from poptorch._optimizer_attributes import read_spec

State = dict[str, torch.Tensor]


class Device:
    """An executor as far as an optimiser sees it: one counter as state, one rate as scalar."""

    def __init__(self, optimizer: optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.state: State = {"Step___w": torch.tensor(0.0), "Accl1___w": torch.zeros(2)}
        self.parameters: State = {"learningRate___specific___w": torch.tensor(0.5)}
        self.reads = 0
        self.attach()

    def attach(self) -> None:
        self.upload()
        self.optimizer._bind(self.read)

    def upload(self) -> None:
        pending = self.optimizer._take_pending()
        if pending is not None:
            self.state |= copy.deepcopy(pending.state or {})
            self.parameters |= copy.deepcopy(pending.parameters or {})

    def run(self) -> None:
        self.upload()
        for tensor in self.state.values():
            tensor += 1
        self.optimizer._invalidate()

    def read(self) -> tuple[State, State]:
        self.reads += 1
        return copy.deepcopy(self.state), copy.deepcopy(self.parameters)


def new_optimizer() -> optim.SGD:
    return optim.SGD([parameter()], lr=0.1, momentum=0.9)


def numbers(source: Any) -> tuple[float, float]:
    """Return the counter and the rate of an optimiser, a state dict or a device."""
    if isinstance(source, Device):
        state, parameters = source.state, source.parameters
    else:
        found = source if isinstance(source, dict) else source.state_dict()
        state, parameters = found["ipu_state"], found["ipu_param"]
    return state["Step___w"].item(), parameters["learningRate___specific___w"].item()


def checkpoint(**states: torch.Tensor) -> dict[str, Any]:
    """Return a checkpoint in the structure of section 8.1."""
    rate = {"learningRate___specific___w": torch.tensor(0.25)}
    return {**new_optimizer().state_dict(), "ipu_state": {"Step___w": torch.tensor(10.0), **states}, "ipu_param": rate}


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
        optimizer = new_optimizer()
        device = Device(optimizer)
        assert optimizer.has_state()
        for number in range(3):
            assert numbers(optimizer) == numbers(optimizer) == (number, 0.5)
            device.run()
            assert device.reads == number + 1, "a run by itself reads nothing"
        part = optimizer.get_state_dict()
        assert part.keys() == {"ipu_state", "ipu_param"}
        del optimizer.state_dict()["ipu_state"]["Step___w"]
        assert numbers(optimizer) == numbers(part) == (3, 0.5), "editing what was returned changes nothing"
        device.run()
        optimizer.set_state_dict(part)
        device.run()
        assert numbers(optimizer) == (4, 0.5)

    def test_the_last_state_is_kept_and_uploaded_at_the_next_attach(self) -> None:
        optimizer = new_optimizer()
        device = Device(optimizer)
        device.run()
        optimizer._unbind()
        device.state["Step___w"].fill_(-1.0)  # what another program leaves on the device
        assert numbers(optimizer) == (1, 0.5)
        device.attach()
        assert numbers(device) == numbers(optimizer) == (1, 0.5)
        device.run()
        assert numbers(optimizer) == (2, 0.5)
        # In another executor it continues with its state, but with newer numbers, read from Python at wrapping.
        optimizer._unbind()
        second = Device(optimizer)
        second.parameters["learningRate___specific___w"].fill_(0.75)
        second.run()
        assert numbers(optimizer) == (3, 0.75)


class TestLoading:
    def test_before_compiling_it_uploads_at_the_first_attach(self) -> None:
        optimizer = new_optimizer()
        optimizer.load_state_dict(checkpoint(Accl1___w=torch.full((2,), 10.0)))
        assert optimizer._pending is not None
        device = Device(optimizer)
        assert optimizer._pending is None
        assert numbers(optimizer) == numbers(device) == (10, 0.25)
        assert device.reads == 0, "what was loaded is current until a run"

    def test_it_restores_the_groups(self) -> None:
        optimizer = new_optimizer()
        source = optim.SGD([parameter()], lr=0.7, momentum=0.3)
        torch.optim.lr_scheduler.LambdaLR(source, lambda step: 0.5)
        optimizer.load_state_dict(source.state_dict())
        group = optimizer.param_groups[0]
        assert (group["lr"], group["momentum"], group["initial_lr"]) == (0.35, 0.3, 0.7)
        assert optimizer._pending is None, "a state dict from before compiling has nothing for the device"

    def test_other_dictionaries_are_refused_and_change_nothing(self) -> None:
        optimizer = new_optimizer()
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


def torch_saved(optimizer: torch.optim.Optimizer) -> Any:
    file = io.BytesIO()
    torch.save(optimizer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o)), torch_saved])
class TestCopies:
    """Copying and pickling (section 8.4)."""

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
        original = new_optimizer()
        device = Device(original)
        device.run()
        copied = duplicate(original)
        device.run()
        assert numbers(copied) == (1, 0.5)
        Device(copied).run()
        assert numbers(copied) == (2, 0.5)
        # One that was loaded still has everything to upload.
        original = new_optimizer()
        original.load_state_dict(checkpoint())
        assert numbers(Device(duplicate(original))) == (10, 0.25)
