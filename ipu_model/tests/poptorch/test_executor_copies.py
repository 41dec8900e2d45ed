"""Copies, files, ties and casts of a wrapped module (executor reference, section 9.5)."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from executor_support import ONES, RATE, Module, Scale, inference, quiet, raw, scale, trained, training
from torch import Tensor, nn

import poptorch


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def saved(value: Any, **how: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **{"weights_only": False, **how})


class TestCopiesOfModules:
    """Section 9.5: what leaves the process, or is copied, is unwrapped and up to date."""

    def test_a_state_dict_holds_plain_tensors_under_the_same_names_and_loads_without_poptorch(self) -> None:
        model, executor = trained(runs=2)
        model.register_buffer("extra", torch.ones(1))
        state = model.state_dict()
        assert list(state) == ["weight", "extra"]
        assert {type(value) for value in state.values()} == {torch.Tensor}
        assert saved(state, weights_only=True)["weight"].item() == 1 - 2 * RATE
        assert executor.isAttachedToDevice()

    @pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled, saved])
    def test_independent_copies_are_unwrapped_with_the_trained_weights(self, duplicate: Any) -> None:
        model, executor = trained(runs=2)
        twin = duplicate(model)
        assert type(twin) is Scale
        assert raw(twin, "weight").item() == 1 - 2 * RATE
        for weight in (twin.weight, duplicate(model.weight)):
            assert type(weight) is nn.Parameter
            assert weight.item() == 1 - 2 * RATE
            assert weight.requires_grad
        assert type(model).__name__ == "PoptorchScale"
        second = training(twin, lr=RATE)
        second(ONES)
        assert (twin.weight.item(), model.weight.item()) == (1 - 3 * RATE, 1 - 2 * RATE)
        assert executor.isAttachedToDevice()
        executor(ONES)
        assert model.weight.item() == 1 - 3 * RATE

    def test_a_shallow_copy_stays_wrapped_until_the_model_is_unwrapped(self) -> None:
        model, executor = trained(runs=2)
        twin = copy.copy(model)
        assert type(twin) is type(model)
        assert twin.weight.item() == 1 - 2 * RATE
        executor(ONES)
        assert twin.state_dict()["weight"].item() == 1 - 3 * RATE
        executor.destroy()
        assert type(twin) is Scale
        training(twin, lr=RATE)(ONES)

    def test_copying_a_wrapped_module_keeps_annotations(self) -> None:
        model = nn.Sequential(nn.Linear(2, 2))
        poptorch.BeginBlock(model[0], "back", ipu_id=0)
        executor = training(model)
        assert "BeginBlock(user_id=back, ipu_id=0)" in poptorch.module_repr(copy.deepcopy(model))
        executor.destroy()


class TestCopiesOfExecutors:
    @pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled, saved])
    @pytest.mark.parametrize("runs", [0, 1])
    def test_an_independent_copy_starts_with_the_weights_of_the_moment(self, duplicate: Any, runs: int) -> None:
        model, executor = trained(runs)
        twin = duplicate(executor)
        assert isinstance(twin, poptorch.PoplarExecutor)
        assert not twin.isCompiled()
        assert twin.weight.item() == 1 - runs * RATE
        twin(ONES)
        twin(ONES)
        assert twin.weight.item() == 1 - (runs + 2) * RATE
        assert model.weight.item() == 1 - runs * RATE
        executor(ONES)
        assert model.weight.item() == 1 - (runs + 1) * RATE

    def test_state_and_settings_of_the_optimizer_come_along(self) -> None:
        """With momentum 0.5 the second step is 1.5 times the first: the copy goes on where the original was."""
        _, _, executor = scale(momentum=0.5, use_combined_accum=False)
        executor(ONES)
        twin = copy.deepcopy(executor)
        twin(ONES)
        assert twin.weight.item() == 1 - RATE - 1.5 * RATE

    @pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickled])
    def test_an_inference_executor_keeps_its_options(self, duplicate: Any) -> None:
        twin = duplicate(inference(Scale(), quiet(deviceIterations=2)))
        assert twin.options.device_iterations == 2
        assert [out.tolist() for out in twin(ONES)] == [[1, 1], [1, 1]]

    def test_a_shallow_copy_is_the_same_executor_under_another_name(self) -> None:
        model, executor = trained()
        twin = copy.copy(executor)
        twin(ONES)
        assert model.weight.item() == 1 - 2 * RATE
        del executor
        twin(ONES)
        assert model.weight.item() == 1 - 3 * RATE
        twin.destroy()
        assert type(model) is Scale


def test_tied_parameters_stay_tied_and_get_the_sum_of_both_gradients() -> None:
    """Copies keep the tie."""

    def forward(model: Any, token: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(model.out(model.embedding(token)), target)

    model: Any = Module(forward, embedding=nn.Embedding(5, 3), out=nn.Linear(3, 5, bias=False))
    model.out.weight = model.embedding.weight
    plain = copy.deepcopy(model)
    batch = torch.tensor([0, 1, 4]), torch.tensor([3, 2, 4])
    executor = training(model, lr=0.5)
    executor(*batch)
    plain(*batch).backward()
    torch.testing.assert_close(model.out.weight, plain.out.weight - 0.5 * plain.out.weight.grad)
    assert model.out.weight is model.embedding.weight
    state = model.state_dict()
    assert state["out.weight"].data_ptr() == state["embedding.weight"].data_ptr()
    model.function = None
    for twin in (copy.deepcopy(model), pickled(model)):
        assert twin.out.weight is twin.embedding.weight


class TestSharedParameters:
    """One tensor in two training models: each has its own copy on its own device."""

    @staticmethod
    def make() -> tuple[Scale, Scale, poptorch.PoplarExecutor, poptorch.PoplarExecutor]:
        one, two = Scale(), Scale()
        two.weight = one.weight
        return one, two, training(one, lr=RATE), training(two, lr=RATE)

    def test_reading_brings_the_weights_of_the_one_that_ran_and_of_two_the_later_one_remains(self) -> None:
        one, two, first, second = self.make()
        first.compile(ONES)
        second.compile(ONES)
        first(ONES)
        first(ONES)
        assert two.weight.item() == 1 - 2 * RATE
        second(ONES)
        assert one.weight.item() == 1 - RATE
        second(ONES)
        first(ONES)
        assert one.weight.item() == 1 - 3 * RATE

    @pytest.mark.parametrize("order", [1, -1])
    def test_destroying_one_leaves_the_other_wrapped(self, order: int) -> None:
        one, two, *executors = self.make()
        for executor in executors:
            executor(ONES)
        (_, first), (model, second) = list(zip((one, two), executors))[::order]
        first.destroy()
        second(ONES)
        assert type(one.weight).__name__ == "PoptorchParameter"
        model.weight.sum()
        second.destroy()
        assert type(one.weight) is nn.Parameter
        assert type(one) is type(two) is Scale

    def test_two_wrapped_tensors_in_one_function_ask_both_executors(self) -> None:
        (one, _first), (two, _second) = trained(), trained(runs=2)
        assert torch.cat([one.weight, two.weight]).tolist() == [1 - RATE, 1 - 2 * RATE]

    def test_casting_a_wrapped_module_keeps_it_wrapped(self) -> None:
        model, executor = trained()
        model.half()
        assert model.weight.dtype is torch.float16
        assert model.weight.item() == 1 - RATE
        executor(ONES)
        assert model.weight.item() == 1 - 2 * RATE

    def test_the_executor_never_fills_gradients_but_a_plain_backward_pass_on_the_host_works(self) -> None:
        model, _executor = trained()
        assert model.weight.grad is None
        model(ONES)[1].backward()
        torch.optim.SGD(model.parameters(), lr=RATE).step()
        assert model.weight.grad.item() == 1
        assert model.weight.item() == 1 - 2 * RATE
