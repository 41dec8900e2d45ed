"""Copies, files, ties and casts of a wrapped module (executor reference, section 9.5)."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from executor_support import ONES, RATE, Net, Scale, X, inference, quiet, raw, trained, training
from torch import Tensor, nn

import poptorch


class TestCopies:
    """Section 9.5: what leaves the process, or is copied, is unwrapped and up to date."""

    def test_a_state_dict_holds_plain_tensors_under_the_same_names(self) -> None:
        model, executor = trained(runs=2)
        model.register_buffer("extra", torch.ones(1))
        state = model.state_dict()
        assert list(state) == ["weight", "extra"]
        assert {type(value) for value in state.values()} == {torch.Tensor}
        assert state["weight"].item() == 1 - 2 * RATE
        assert executor.isAttachedToDevice()

    def test_a_saved_state_dict_loads_without_poptorch(self) -> None:
        model, _executor = trained()
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        assert b"poptorch" not in file.getvalue()
        file.seek(0)
        fresh = Scale()
        fresh.load_state_dict(torch.load(file, weights_only=True))
        assert fresh.weight.item() == 1 - RATE

    @pytest.mark.parametrize(
        "duplicate",
        [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), lambda m: torch.load(_saved(m), weights_only=False)],
        ids=["deepcopy", "pickle", "torch.save"],
    )  # fmt: skip
    def test_copies_of_a_module_are_unwrapped_and_have_the_trained_weights(self, duplicate: Any) -> None:
        model, executor = trained(runs=2)
        twin = duplicate(model)
        assert type(twin) is Scale
        assert raw(twin, "weight").item() == 1 - 2 * RATE
        assert type(model).__name__ == "PoptorchScale"
        executor(ONES)
        assert model.weight.item() == 1 - 3 * RATE

    @pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
    def test_independent_copies_have_plain_parameters_and_can_be_wrapped_themselves(self, duplicate: Any) -> None:
        model, executor = trained()
        twin = duplicate(model)
        assert type(twin.weight) is nn.Parameter
        second = training(twin, lr=RATE)
        second(ONES)
        assert (twin.weight.item(), model.weight.item()) == (1 - 2 * RATE, 1 - RATE)
        assert executor.isAttachedToDevice()

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

    def test_a_parameter_on_its_own(self) -> None:
        model, _executor = trained()
        for twin in (copy.deepcopy(model.weight), pickle.loads(pickle.dumps(model.weight))):
            assert type(twin) is nn.Parameter
            assert twin.item() == 1 - RATE
            assert twin.requires_grad

    def test_copying_a_wrapped_module_keeps_annotations(self) -> None:
        model = Net()
        poptorch.BeginBlock(model.second, "back", ipu_id=0)
        executor = training(model)
        assert "BeginBlock(user_id=back, ipu_id=0)" in poptorch.module_repr(copy.deepcopy(model))
        executor.destroy()


class TestCopiesOfExecutors:
    @pytest.mark.parametrize(
        "duplicate",
        [copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e)), lambda e: torch.load(_saved(e), weights_only=False)],
        ids=["deepcopy", "pickle", "torch.save"],
    )
    @pytest.mark.parametrize("runs", [0, 1])
    def test_an_independent_copy_starts_uncompiled_with_the_weights_of_the_moment(
        self, duplicate: Any, runs: int
    ) -> None:
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
        model = Scale()
        executor = training(model, lr=RATE, momentum=0.5, use_combined_accum=False)
        executor(ONES)
        twin = copy.deepcopy(executor)
        twin(ONES)
        assert twin.weight.item() == 1 - RATE - 1.5 * RATE

    @pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
    def test_an_inference_executor_keeps_its_options(self, duplicate: Any) -> None:
        executor = inference(Net(), quiet().deviceIterations(2))
        expected = executor(X)
        twin = duplicate(executor)
        assert twin.options.device_iterations == 2
        assert torch.equal(twin(X), expected)

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


def _saved(model: nn.Module | poptorch.PoplarExecutor) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return file


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, token: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.out(self.embedding(token))
        return logits, F.cross_entropy(logits, target)


class TestTiedParameters:
    def test_they_stay_tied_and_get_the_sum_of_both_gradients(self) -> None:
        torch.manual_seed(0)
        model = Tied()
        plain = copy.deepcopy(model)
        token, target = torch.tensor([0, 1, 4]), torch.tensor([3, 2, 4])
        executor = training(model, lr=0.5)
        executor(token, target)
        plain(token, target)[1].backward()
        expected = plain.out.weight - 0.5 * plain.out.weight.grad
        torch.testing.assert_close(model.out.weight, expected)
        assert model.out.weight is model.embedding.weight
        state = model.state_dict()
        assert state["out.weight"].data_ptr() == state["embedding.weight"].data_ptr()

    def test_copies_keep_the_tie(self) -> None:
        model = Tied()
        executor = training(model)
        executor(torch.tensor([0]), torch.tensor([1]))
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert twin.out.weight is twin.embedding.weight


class TestSharedParameters:
    """One tensor in two training models: each has its own copy on its own device."""

    def make(self) -> tuple[Scale, Scale, poptorch.PoplarExecutor, poptorch.PoplarExecutor]:
        one, two = Scale(), Scale()
        two.weight = one.weight
        return one, two, training(one, lr=RATE), training(two, lr=RATE)

    def test_reading_brings_the_weights_of_the_one_that_ran(self) -> None:
        one, two, first, second = self.make()
        first.compile(ONES)
        second.compile(ONES)
        first(ONES)
        first(ONES)
        assert two.weight.item() == 1 - 2 * RATE
        second(ONES)
        assert one.weight.item() == 1 - RATE

    def test_of_two_unread_runs_the_later_one_remains(self) -> None:
        one, _two, first, second = self.make()
        first.compile(ONES)
        second(ONES)
        for _ in range(3):
            first(ONES)
        assert one.weight.item() == 1 - 3 * RATE

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_destroying_one_leaves_the_other_wrapped(self, order: tuple[int, int]) -> None:
        one, two, *executors = self.make()
        models = (one, two)
        for executor in executors:
            executor(ONES)
        executors[order[0]].destroy()
        executors[order[1]](ONES)
        assert type(one.weight).__name__ == "PoptorchParameter"
        models[order[1]].weight.sum()
        executors[order[1]].destroy()
        assert type(one.weight) is nn.Parameter
        assert type(one) is type(two) is Scale

    def test_two_wrapped_tensors_in_one_function_ask_both_executors(self) -> None:
        one, two = Scale(), Scale()
        first, second = training(one, lr=RATE), training(two, lr=2 * RATE)
        first(ONES)
        second(ONES)
        assert torch.cat([one.weight, two.weight]).tolist() == [1 - RATE, 1 - 2 * RATE]


class TestConversions:
    def test_casting_a_wrapped_module_keeps_it_wrapped(self) -> None:
        model, executor = trained()
        model.half()
        assert model.weight.dtype is torch.float16
        assert model.weight.item() == 1 - RATE
        executor(ONES)
        assert model.weight.item() == 1 - 2 * RATE

    def test_a_plain_backward_pass_on_the_host_works(self) -> None:
        model, _executor = trained()
        model(ONES)[1].backward()
        assert model.weight.grad.item() == 1
        torch.optim.SGD(model.parameters(), lr=RATE).step()
        assert model.weight.item() == 1 - 2 * RATE

    def test_the_executor_never_fills_gradients(self) -> None:
        model, _executor = trained()
        assert model.weight.grad is None
