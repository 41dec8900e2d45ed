"""`state_dict` and `load_state_dict`: structure, timing, loading (poptorch-optim.md, section 8)."""

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
            self.state.update({n: t.clone() for n, t in (pending.state or {}).items()})
            self.parameters.update({n: t.clone() for n, t in (pending.parameters or {}).items()})

    def run(self) -> None:
        self.upload()
        for tensor in self.state.values():
            tensor += 1
        self.optimizer._invalidate()

    def read(self) -> tuple[State, State]:
        self.reads += 1
        return ({n: t.clone() for n, t in self.state.items()}, {n: t.clone() for n, t in self.parameters.items()})


def new_optimizer(**given: Any) -> optim.SGD:
    return optim.SGD([parameter()], lr=0.1, momentum=0.9, **given)


def steps(state_dict: dict[str, Any]) -> float:
    return float(state_dict["ipu_state"]["Step___w"])


def rate(state_dict: dict[str, Any]) -> float:
    return float(state_dict["ipu_param"]["learningRate___specific___w"])


def checkpoint(step: float = 10.0, **missing: None) -> dict[str, Any]:
    """Return a checkpoint in the structure of section 8.1."""
    ipu_state = {"Step___w": torch.tensor(step), "Accl1___w": torch.full((2,), step)}
    for name in missing:
        del ipu_state[name]
    return {**new_optimizer().state_dict(), "ipu_state": ipu_state,
            "ipu_param": {"learningRate___specific___w": torch.tensor(0.25)}}  # fmt: skip


@pytest.mark.parametrize("name", MAKERS)
def test_before_compiling_there_is_no_device_state(name: str) -> None:
    optimizer: Any = MAKERS[name]([parameter()], lr=0.5)
    optimizer._unbind()
    optimizer._invalidate()
    assert optimizer._take_pending() is None
    assert not optimizer.has_state()
    state_dict = optimizer.state_dict()
    assert set(state_dict) == {"ipu_state", "ipu_param", "state", "param_groups"}
    assert (state_dict["ipu_state"], state_dict["ipu_param"], state_dict["state"]) == (None, None, {})
    assert state_dict["param_groups"][0]["lr"] == 0.5


class TestReading:
    def test_the_initial_state_is_read_and_then_once_between_two_runs(self) -> None:
        optimizer = new_optimizer()
        device = Device(optimizer)
        assert optimizer.has_state()
        assert (steps(optimizer.state_dict()), rate(optimizer.state_dict())) == (0.0, 0.5)
        for number in (1, 2):
            device.run()
            assert device.reads == number, "a run by itself reads nothing"
            assert steps(optimizer.state_dict()) == steps(optimizer.state_dict()) == number
            assert device.reads == number + 1
        del optimizer.state_dict()["ipu_state"]["Step___w"]
        assert steps(optimizer.state_dict()) == 2.0, "editing what was returned changes nothing"

    def test_the_devices_part_can_be_taken_and_given_alone(self) -> None:
        optimizer = new_optimizer()
        device = Device(optimizer)
        device.run()
        part = optimizer.get_state_dict()
        assert part.keys() == {"ipu_state", "ipu_param"}
        assert steps(part) == 1.0
        device.run()
        optimizer.set_state_dict(part)
        device.run()
        assert steps(optimizer.get_state_dict()) == 2.0

    def test_the_last_state_is_kept_and_uploaded_at_the_next_attach(self) -> None:
        optimizer = new_optimizer()
        device = Device(optimizer)
        device.run()
        optimizer._unbind()
        device.state["Step___w"].fill_(-1.0)  # what another program leaves on the device
        assert steps(optimizer.state_dict()) == 1.0
        device.attach()
        assert steps({"ipu_state": device.state}) == steps(optimizer.state_dict()) == 1.0
        device.run()
        assert steps(optimizer.state_dict()) == 2.0
        # In another executor it continues with its state, but with newer numbers.
        optimizer._unbind()
        second = Device(optimizer)
        second.parameters["learningRate___specific___w"].fill_(0.75)  # read from Python at wrapping
        second.run()
        assert (steps(optimizer.state_dict()), rate(optimizer.state_dict())) == (3.0, 0.75)


class TestLoading:
    def test_loaded_entries_are_shown_at_once_uploaded_at_the_next_run_and_merged_then(self) -> None:
        optimizer = new_optimizer()
        device = Device(optimizer)
        device.run()
        loaded = checkpoint(Accl1___w=None)
        optimizer.load_state_dict(loaded)
        loaded["ipu_state"]["Step___w"].fill_(0.0)  # loaded tensors are copies
        shown = optimizer.state_dict()
        assert shown["ipu_state"].keys() == {"Step___w"}
        assert steps(shown) == 10.0
        assert shown["ipu_param"].keys() == loaded["ipu_param"].keys()
        assert steps({"ipu_state": device.state}) == 1.0, "nothing is uploaded before the next run"
        device.run()
        merged = optimizer.state_dict()
        assert (steps(merged), rate(merged)) == (11.0, 0.25)
        assert merged["ipu_state"]["Accl1___w"].tolist() == [2.0, 2.0], "what was missing comes from the device"

    def test_before_compiling_it_uploads_at_the_first_attach(self) -> None:
        optimizer = new_optimizer()
        optimizer.load_state_dict(checkpoint())
        assert optimizer._pending is not None
        device = Device(optimizer)
        assert optimizer._pending is None
        assert steps(optimizer.state_dict()) == 10.0
        assert rate({"ipu_param": device.parameters}) == 0.25
        assert device.reads == 0, "what was loaded is current until a run"

    def test_it_restores_the_groups(self) -> None:
        optimizer = new_optimizer()
        source = optim.SGD([parameter()], lr=0.7, momentum=0.3)
        torch.optim.lr_scheduler.LambdaLR(source, lambda step: 0.5)
        optimizer.load_state_dict(source.state_dict())
        group = optimizer.param_groups[0]
        assert (group["lr"], group["momentum"], group["initial_lr"]) == (0.35, 0.3, 0.7)
        assert optimizer._pending is None, "a state dict from before compiling has nothing for the device"

    def test_set_optimizer_gives_pythons_numbers_precedence_over_the_checkpoints(self) -> None:
        optimizer = new_optimizer()
        device = Device(optimizer)
        optimizer.load_state_dict(checkpoint())
        optimizer._drop_pending_parameters()
        device.run()
        assert (steps(optimizer.state_dict()), rate(optimizer.state_dict())) == (11.0, 0.5)
        optimizer.load_state_dict({**checkpoint(), "ipu_state": None})
        assert optimizer._pending is not None
        optimizer._drop_pending_parameters()
        assert optimizer._take_pending() is None

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

    def test_a_state_dict_survives_torch_save_and_its_safe_load(self) -> None:
        optimizer = new_optimizer()
        Device(optimizer).run()
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        other = new_optimizer()
        other.load_state_dict(torch.load(file, weights_only=True))
        assert steps(other.state_dict()) == 1.0


# Copying and pickling (section 8.4)

OPTIONS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.5, "loss_scaling": 4.0, "velocity_scaling": 2.0, "use_combined_accum": True,
            "accum_type": torch.float16, "max_grad_norm": 3.0},
    "Adam": {"lr": 0.2, "loss_scaling": 4.0, "first_order_momentum_accum_type": torch.float16,
             "max_grad_norm": 3.0},
    "AdamW": {"lr": 0.2, "bias_correction": False, "second_order_momentum_accum_type": torch.float16},
    "RMSprop": {"lr": 0.2, "centered": True, "use_tf_variant": True, "accum_type": torch.float16},
    "LAMB": {"lr": 0.2, "bias_correction": False, "max_weight_norm": 3.0, "loss_scaling": 4.0}
}  # fmt: skip


def torch_saved(optimizer: torch.optim.Optimizer) -> Any:
    file = io.BytesIO()
    torch.save(optimizer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIERS = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda optimizer: pickle.loads(pickle.dumps(optimizer)),
    "torch.save": torch_saved,
}
every_way = pytest.mark.parametrize("way", COPIERS)


@every_way
@pytest.mark.parametrize("name", MAKERS)
def test_copies_keep_groups_defaults_variables_and_options(name: str, way: str) -> None:
    original: Any = MAKERS[name]([parameter()], **OPTIONS[name])
    original.variable_attrs.markAsVariable("weight_decay")
    original.variable_attrs.markAsConstant("lr")
    copied = COPIERS[way](original)
    assert type(copied) is type(original)
    assert {**copied.defaults, **original.defaults} == copied.defaults  # PyTorch may add keys of its own
    assert read_spec(copied) == read_spec(original)
    for option, value in OPTIONS[name].items():
        found = getattr(copied, option) if hasattr(copied, option) else copied.param_groups[0][option]
        assert found == value
    copied.variable_attrs.markAsVariable("lr")
    assert original.variable_attrs.isConstant("lr"), "the copy's marks are its own"


@every_way
def test_copies_carry_the_devices_state_and_are_not_bound_to_the_device(way: str) -> None:
    original = new_optimizer()
    device = Device(original)
    device.run()
    copied = COPIERS[way](original)
    device.run()
    assert steps(copied.state_dict()) == 1.0
    Device(copied).run()
    assert steps(copied.state_dict()) == 2.0
    # One that was loaded still has everything to upload.
    original = new_optimizer()
    original.load_state_dict(checkpoint())
    device = Device(COPIERS[way](original))
    assert steps({"ipu_state": device.state}) == 10.0
    assert rate({"ipu_param": device.parameters}) == 0.25
