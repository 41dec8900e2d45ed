"""The optimiser of a running model: its numbers, schedulers, state, resuming (optimiser reference, sections 6 to 8)."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from executor_support import ONES, RATE, Net, Scale, X, Y, inference, quiet, scale, sgd

import poptorch
from poptorch import optim

S = torch.optim.lr_scheduler
SCHEDULERS: list[Any] = [
    lambda o: S.MultiStepLR(o, [1, 3], 0.5),
    lambda o: S.LambdaLR(o, lambda epoch: 1 / (epoch + 1)),
    lambda o: S.CosineAnnealingWarmRestarts(o, 3),
    lambda o: S.CyclicLR(o, RATE / 4, RATE, 3),
    lambda o: S.OneCycleLR(o, RATE, total_steps=10),
    lambda o: S.ReduceLROnPlateau(o, patience=1),
    lambda o: S.SequentialLR(o, [S.ConstantLR(o), S.ExponentialLR(o, 0.5)], [2]),
    lambda o: torch.optim.swa_utils.SWALR(o, RATE / 4, anneal_epochs=5),
]


class TestSetOptimizer:
    def test_numbers_are_read_when_wrapping_and_at_each_set_optimizer_only(self) -> None:
        model, optimiser, executor = scale()
        optimiser.param_groups[0]["lr"] = 4 * RATE
        executor(ONES)
        assert model.weight.item() == 1 - RATE, "the rate at wrapping"
        executor(ONES)
        assert model.weight.item() == 1 - 2 * RATE
        model.weight.data.fill_(5)
        executor.setOptimizer(optimiser)
        executor(ONES)
        assert model.weight.item() == 1 - 6 * RATE

    @pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
    def test_a_scheduler_and_set_optimizer_after_each_step(self) -> None:
        model, optimiser, executor = scale(options=quiet(deviceIterations=2))
        scheduler = S.ExponentialLR(optimiser, gamma=0.5)
        executor.setOptimizer(optimiser)
        for _ in range(3):
            executor(ONES)
            scheduler.step()
            executor.setOptimizer(optimiser)
        assert model.weight.item() == 1 - 2 * (RATE + RATE / 2 + RATE / 4)

    @pytest.mark.filterwarnings("ignore:.*lr_scheduler:UserWarning", "ignore:.*scheduler.step:UserWarning")
    @pytest.mark.parametrize("make", SCHEDULERS)
    def test_torchs_schedulers_do_what_they_do_there(self, make: Any) -> None:
        """Also those that change the momentum, which has to be variable for that."""
        model, optimiser, executor = scale(momentum=0.5)
        plain = Scale()
        expected = torch.optim.SGD(plain.parameters(), lr=RATE, momentum=0.5)
        here, there = make(optimiser), make(expected)
        # Some set their first rate when they are made.
        executor.setOptimizer(optimiser)
        for _ in range(4):
            executor(ONES)
            expected.zero_grad()
            plain(ONES)[1].backward()
            expected.step()
            for scheduler in (here, there):
                scheduler.step(*([1.0] if isinstance(scheduler, S.ReduceLROnPlateau) else []))
            executor.setOptimizer(optimiser)
        torch.testing.assert_close(model.weight.data, plain.weight.data)
        assert len({group["lr"] for group in optimiser.param_groups} | {RATE}) > 1, "the rate has changed"

    def test_before_compilation_and_while_detached_it_is_kept_for_later(self) -> None:
        model, optimiser, executor = scale()
        for weight in (1 - 2 * RATE, 1 - 5 * RATE):
            optimiser.param_groups[0]["lr"] += RATE
            executor.setOptimizer(optimiser)
            executor(ONES)
            executor.detachFromDevice()
            assert model.weight.item() == weight

    @pytest.mark.parametrize(
        ("change", "error", "words"),
        [
            (lambda m: torch.optim.Adagrad(m.parameters()), AssertionError, r"Unsupported .* Adagrad.*SGD, Adam, Ad"),
            (lambda m: optim.AdamW(m.parameters(), lr=RATE), poptorch.Error, "Can not replace"),
            (lambda m: sgd(m, RATE, momentum=0.5), poptorch.Error, "replace a constant value with a non constant"),
            (lambda m: torch.optim.SGD(m.parameters(), RATE, weight_decay=1), poptorch.Error, "Can not|do not match"),
            (lambda m: sgd(m, RATE, max_grad_norm=1.0), poptorch.Error, "max_grad_norm"),
            (lambda m: sgd(m, RATE, accum_type=torch.float16), ValueError, r"Invalid optimizer.*already compiled"),
        ],
    )
    def test_what_is_compiled_in_cannot_change(self, change: Any, error: type[Exception], words: str) -> None:
        model, _, executor = scale()
        executor(ONES)
        with pytest.raises(error, match=words):
            executor.setOptimizer(change(model))
        executor(ONES)
        assert model.weight.item() == 1 - 2 * RATE
        with pytest.raises(poptorch.Error, match=r"setOptimizer.*poptorch.trainingModel"):
            inference(Net()).setOptimizer(sgd(Net()))

    def test_numbers_that_no_device_can_run_with_are_refused(self) -> None:
        """When the program is compiled, and also later; all of them: `engine/test_weight_updates.py`."""
        model, _, executor = scale(loss_scaling=0.0)
        with pytest.raises(poptorch.Error, match="Loss scaling cannot be 0"):
            executor(ONES)
        assert type(model) is Scale
        _, optimiser, executor = scale(max_grad_norm=2.0)
        executor(ONES)
        optimiser.max_grad_norm = float("nan")
        with pytest.raises(poptorch.Error, match="max_grad_norm is NaN"):
            executor.setOptimizer(optimiser)

    def test_half_accumulators_switch_the_executors_own_options_to_a_running_mean(self) -> None:
        options = quiet()
        _, _, executor = scale(options=options, accum_type=torch.float16)
        strategy = "meanAccumulationAndReplicationReductionStrategy"
        assert getattr(executor.options.Training, strategy) == poptorch.MeanReductionStrategy.Running
        assert getattr(options.Training, strategy) == poptorch.MeanReductionStrategy.Post

    @pytest.mark.parametrize("second_too", [True, False])
    def test_each_group_has_its_numbers_and_parameters_of_none_use_the_defaults(self, second_too: bool) -> None:
        def grouped(model: Net) -> optim.SGD:
            rest = [{"params": model.second.parameters()}] if second_too else []
            return optim.SGD([{"params": model.first.parameters(), "lr": 0.0}, *rest], lr=0.5)

        model, optimiser, executor = scale(grouped, model=Net())
        first, second = model.first.weight.detach().clone(), model.second.weight.detach().clone()
        executor(X, Y)
        assert torch.equal(model.first.weight, first)
        assert not torch.equal(model.second.weight, second)
        optimiser.param_groups[0]["lr"] = 0.5
        executor.setOptimizer(optimiser)
        executor(X, Y)
        assert not torch.equal(model.first.weight, first)


def scheduled(model: Scale) -> optim.SGD:
    optimiser = sgd(model)
    S.ExponentialLR(optimiser, gamma=0.5)
    return optimiser


class TestWarnings:
    @pytest.mark.parametrize("relaxed", [False, True])
    def test_attributes_that_appear_later_unless_relaxed(self, relaxed: bool, caplog: pytest.LogCaptureFixture) -> None:
        _, optimiser, executor = scale(scheduled, quiet(relaxOptimizerAttributesChecks=relaxed))
        executor.setOptimizer(optimiser)
        assert caplog.text == "", "a scheduler made before wrapping is known"
        optimiser.param_groups[0]["mine"] = 1
        for _ in range(2):
            executor.setOptimizer(optimiser)
        lines = [r.getMessage() for r in caplog.records if r.levelno > logging.DEBUG]
        assert lines == ["Ignoring unexpected group 0 attribute in SGD2 optimizer: ['mine']"] * (not relaxed)


class TestNativeOptimisers:
    @pytest.mark.parametrize(("native", "velocities"), [(True, (1, 1, 1)), (False, (1, 1.5, 1.75))])
    def test_their_state_starts_anew_at_each_upload(self, native: bool, velocities: tuple[float, ...]) -> None:
        """PopTorch's keep it: with momentum 0.5 and gradients 1, the velocities are 1, 1.5, 1.75."""
        kind = torch.optim.SGD if native else optim.SGD
        model, optimiser, executor = scale(lambda m: kind(m.parameters(), lr=RATE, momentum=0.5))
        expected = 1.0
        for velocity, upload in zip(velocities, ("detachFromDevice", "copyWeightsToDevice", "copyWeightsToDevice")):
            executor(ONES)
            expected -= RATE * velocity
            assert model.weight.item() == expected
            getattr(executor, upload)()
        assert optimiser.state_dict()["state"] == {}, "that of the host"


def velocity(optimiser: Any) -> Any:
    """Return the only entry of the device's state, of which there may be none yet."""
    state = optimiser.state_dict()["ipu_state"]
    assert state is None or list(state) == ["Accl1___weight"]
    return state and state["Accl1___weight"].tolist()


class TestState:
    """The table of section 8.2; what is loaded and when it is shown: `test_optim_state_dict.py`."""

    @pytest.mark.parametrize("end", ["detachFromDevice", "destroy"])
    def test_it_is_the_devices_as_long_as_there_is_one_and_then_the_last(self, end: str) -> None:
        _, optimiser, executor = scale(momentum=0.5)
        assert optimiser.state_dict()["ipu_param"] is None
        assert velocity(optimiser) is None
        executor.compile(ONES)
        assert velocity(optimiser) == [0]
        executor(ONES)
        assert velocity(optimiser) == [1]
        executor(ONES)
        assert velocity(optimiser) == [1.5]
        assert executor.copyWeightsToHostIfNeeded() is True, "reading the state transfers no weights"
        executor(ONES)
        getattr(executor, end)()
        assert velocity(optimiser) == [1.75]

    def test_on_an_offline_target_and_for_plain_sgd_there_is_none(self) -> None:
        _, optimiser, executor = scale(momentum=0.5, options=quiet().useOfflineIpuTarget())
        executor.compile(ONES)
        assert optimiser.state_dict()["ipu_param"] is None
        assert velocity(optimiser) is None
        _, optimiser, executor = scale()
        executor(ONES)
        assert optimiser.state_dict()["ipu_state"] == {}

    def test_a_checkpoints_rate_counts_until_the_next_set_optimizer(self) -> None:
        model, optimiser, executor = scale()
        executor(ONES)
        checkpoint = copy.deepcopy(optimiser.state_dict())
        for weight in (1 - 2 * RATE, 1 - 4 * RATE):
            optimiser.param_groups[0]["lr"] = 2 * RATE
            executor.setOptimizer(optimiser)
            if checkpoint:
                optimiser.load_state_dict(checkpoint)
                checkpoint = {}
            executor(ONES)
            assert model.weight.item() == weight


class TestResuming:
    def test_the_same_optimiser_or_a_copy_in_a_new_executor_continues(self) -> None:
        model, optimiser, executor = scale(momentum=0.5)
        executor(ONES)
        twins = copy.deepcopy((model, optimiser))
        executor.destroy()
        assert twins[1].param_groups[0]["params"][0] is twins[0].weight
        for module, continued in ((model, optimiser), twins):
            again = poptorch.trainingModel(module, quiet(), continued)
            again(ONES)
            assert module.weight.item() == 1 - RATE - 1.5 * RATE

    @pytest.mark.parametrize("own", [None, 4.0])
    def test_another_optimiser_takes_the_devices_state_over_unless_it_brings_its_own(self, own: float | None) -> None:
        model, first, executor = scale(momentum=0.5)
        executor(ONES)
        second = sgd(model, 2 * RATE, momentum=0.5)
        if own is not None:
            state = copy.deepcopy(first.state_dict())
            state["ipu_state"]["Accl1___weight"].fill_(own)
            second.load_state_dict(state)
            second.param_groups[0]["lr"] = 2 * RATE
        executor.setOptimizer(second)
        executor(ONES)
        taken = 0.5 * (own or 1.0) + 1
        assert model.weight.item() == 1 - RATE - 2 * RATE * taken
        assert velocity(first) == [1], "what it was when it was replaced"
        assert velocity(second) == [taken]
