"""The state of an optimiser on the device, and resuming from it (optimiser reference, section 8)."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from executor_support import ONES, RATE, Scale, quiet, scale, sgd

import poptorch
from poptorch import optim


class TestState:
    """The table of section 8.2 of the optimiser reference."""

    def test_before_compilation_there_is_none(self) -> None:
        _, optimiser, executor = scale(momentum=0.5)
        state = optimiser.state_dict()
        assert (state["ipu_state"], state["ipu_param"]) == (None, None)
        executor.compile(ONES)
        assert optimiser.state_dict()["ipu_state"] is not None

    def test_on_an_offline_target_neither(self) -> None:
        _, optimiser, executor = scale(momentum=0.5, options=quiet().useOfflineIpuTarget())
        executor.compile(ONES)
        state = optimiser.state_dict()
        assert (state["ipu_state"], state["ipu_param"]) == (None, None)

    def test_after_compilation_it_is_the_initial_one(self) -> None:
        _, optimiser, executor = scale(momentum=0.5)
        executor.compile(ONES)
        state = optimiser.state_dict()["ipu_state"]
        assert {name: value.tolist() for name, value in state.items()} == {"Accl1___weight": [0]}

    def test_after_a_run_it_is_the_devices_and_reading_it_transfers_no_weights(self) -> None:
        _, optimiser, executor = scale(momentum=0.5)
        executor(ONES)
        first = optimiser.state_dict()["ipu_state"]
        executor(ONES)
        assert first["Accl1___weight"].tolist() == [1]
        assert optimiser.state_dict()["ipu_state"]["Accl1___weight"].tolist() == [1.5]
        assert executor.copyWeightsToHostIfNeeded() is True

    def test_plain_sgd_has_empty_state(self) -> None:
        _, optimiser, executor = scale()
        executor(ONES)
        assert optimiser.state_dict()["ipu_state"] == {}

    def test_right_after_loading_it_is_exactly_what_was_loaded(self) -> None:
        _, optimiser, executor = scale(momentum=0.5)
        executor(ONES)
        state = optimiser.state_dict()
        state["ipu_state"] = {"Accl1___weight": torch.tensor([8.0])}
        state["ipu_param"] = {}
        optimiser.load_state_dict(state)
        now = optimiser.state_dict()
        assert now["ipu_state"]["Accl1___weight"].tolist() == [8]
        assert now["ipu_param"] == {}

    def test_it_is_uploaded_at_the_next_run_and_missing_entries_are_reported(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        _, optimiser, executor = scale(lambda m: optim.Adam(m.parameters(), lr=RATE))
        executor(ONES)
        state = optimiser.state_dict()
        state["ipu_state"] = {"Accl1___weight": torch.tensor([8.0])}
        state["ipu_param"] = None
        optimiser.load_state_dict(state)
        executor(ONES)
        now = optimiser.state_dict()["ipu_state"]
        assert now["Accl1___weight"].item() == pytest.approx(0.9 * 8 + 0.1)
        assert set(now) == {"Accl1___weight", "Accl2___weight", "Step___weight"}
        assert "ignoring missing state Accl2___weight" in caplog.text

    @pytest.mark.parametrize("end", ["detachFromDevice", "destroy"])
    def test_after_detaching_or_destroying_it_is_the_last_one(self, end: str) -> None:
        _, optimiser, executor = scale(momentum=0.5)
        executor(ONES)
        getattr(executor, end)()
        assert optimiser.state_dict()["ipu_state"]["Accl1___weight"].tolist() == [1]

    def test_a_checkpoints_rate_counts_until_the_next_set_optimizer(self) -> None:
        model, optimiser, executor = scale()
        executor(ONES)
        checkpoint = copy.deepcopy(optimiser.state_dict())
        optimiser.param_groups[0]["lr"] = 2 * RATE
        executor.setOptimizer(optimiser)
        optimiser.load_state_dict(checkpoint)
        executor(ONES)
        assert model.weight.item() == 1 - 2 * RATE
        optimiser.param_groups[0]["lr"] = 2 * RATE
        executor.setOptimizer(optimiser)
        executor(ONES)
        assert model.weight.item() == 1 - 4 * RATE

    def test_foreign_or_empty_state_is_refused(self) -> None:
        model, optimiser, _ = scale()
        with pytest.raises(RuntimeError, match="because it is empty"):
            optimiser.load_state_dict({})
        with pytest.raises(RuntimeError, match="Only IPU optimizer states can be loaded onto the IPU"):
            optimiser.load_state_dict(torch.optim.SGD(model.parameters(), lr=RATE).state_dict())


class TestResuming:
    def test_from_a_saved_checkpoint_in_a_new_program(self) -> None:
        model, optimiser, executor = scale(momentum=0.5)
        for _ in range(2):
            executor(ONES)
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimiser": optimiser.state_dict()}, file)
        executor(ONES)
        file.seek(0)
        checkpoint = torch.load(file, weights_only=True)
        resumed, new_optimiser = Scale(), None
        resumed.load_state_dict(checkpoint["model"])
        new_optimiser = sgd(resumed, RATE, momentum=0.5)
        new_optimiser.load_state_dict(checkpoint["optimiser"])
        again = poptorch.trainingModel(resumed, quiet(), new_optimiser)
        again(ONES)
        assert resumed.weight.item() == model.weight.item()

    def test_the_same_optimiser_in_a_new_executor_continues(self) -> None:
        model, optimiser, executor = scale(momentum=0.5)
        executor(ONES)
        executor.destroy()
        again = poptorch.trainingModel(model, quiet(), optimiser)
        again(ONES)
        assert model.weight.item() == 1 - RATE - 1.5 * RATE

    def test_another_optimiser_of_the_kind_takes_the_devices_state_over(self) -> None:
        model, first, executor = scale(momentum=0.5)
        executor(ONES)
        second = sgd(model, 2 * RATE, momentum=0.5)
        executor.setOptimizer(second)
        executor(ONES)
        assert model.weight.item() == 1 - RATE - 2 * RATE * 1.5
        assert first.state_dict()["ipu_state"]["Accl1___weight"].tolist() == [1], "what it was when it was replaced"
        assert second.state_dict()["ipu_state"]["Accl1___weight"].tolist() == [1.5]

    def test_unless_it_brings_its_own(self) -> None:
        model, first, executor = scale(momentum=0.5)
        executor(ONES)
        state = copy.deepcopy(first.state_dict())
        state["ipu_state"]["Accl1___weight"].fill_(4)
        second = sgd(model, RATE, momentum=0.5)
        second.load_state_dict(state)
        executor.setOptimizer(second)
        executor(ONES)
        assert model.weight.item() == 1 - RATE - RATE * (0.5 * 4 + 1)

    def test_a_pickled_optimiser_uploads_its_state_when_attached(self) -> None:
        model, optimiser, executor = scale(momentum=0.5)
        executor(ONES)
        twin_model, twin_optimiser = copy.deepcopy((model, optimiser))
        assert twin_optimiser.param_groups[0]["params"][0] is twin_model.weight
        second = poptorch.trainingModel(twin_model, quiet(), twin_optimiser)
        executor(ONES)
        second(ONES)
        assert twin_model.weight.item() == model.weight.item()
