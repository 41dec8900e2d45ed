"""Two copies of the weights, when they agree; copies, ties and casts of the module (executor reference, section 9)."""

from __future__ import annotations

import copy
import io
from collections import Counter
from collections.abc import Callable
from typing import Any

import executor_support as support
import pytest
import torch
import torch.nn.functional as F
from executor_support import ONES, RATE, Net, Scale, X, Y, inference, quiet, raw, scale, trained, training, with_loss
from torch import Tensor, nn

import poptorch
from ipu_model.compute.session import Session


@pytest.fixture
def transfers(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often all weights went to the host and to the device."""
    counts: Counter[str] = Counter()
    for name in ("download", "upload"):
        original = getattr(Session, name)

        def counting(*args: Any, name: str = name, original: Any = original) -> Any:
            counts[name] += 1
            return original(*args)

        monkeypatch.setattr(Session, name, counting)
    return counts


class TestSharedElements:
    """Elements of `expand()` share memory on the host; on the device each has its own."""

    @pytest.mark.parametrize("shape", [(1, 1), (2, 1), (1, 3)])
    def test_such_a_parameter_is_refused_when_it_shall_be_trained(self, shape: tuple[int, int]) -> None:
        weight = nn.Parameter(torch.ones(shape).expand(2, 3))
        model = with_loss(lambda m, x: m.weight * x, weight=weight)
        with pytest.raises(poptorch.Error, match=r"parameter 'weight' share memory.*Parameter\(tensor\.clone\(\)\)"):
            training(model)
        weight.requires_grad_(False)
        training(support.Module(model.function, weight=weight, other=nn.Linear(3, 3))).destroy()
        assert torch.equal(inference(support.Module(lambda m, x: m.weight * x, weight=weight))(ONES[:, None]), weight)

    @pytest.mark.parametrize("shape", [(1, 1), (2, 1), (1, 3)])
    def test_such_a_buffer_is_used_and_comes_back(self, shape: tuple[int, int]) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            model.count += 1
            return model.layer(x) * model.count

        model = with_loss(forward, layer=nn.Linear(3, 3))
        model.register_buffer("count", torch.ones(shape).expand(2, 3))
        executor = training(model)
        before = model.layer(torch.ones(2, 3)).detach()
        assert torch.allclose(executor(torch.ones(2, 3))[0], before * 2)
        executor.copyWeightsToHost()
        assert torch.equal(model.count, torch.full((2, 3), 2.0))


class TestHostToDevice:
    def test_edits_of_the_host_reach_the_device_only_when_copied(self) -> None:
        model = Net()
        executor = inference(model)
        before = executor(X)
        nn.init.zeros_(model.first.weight)
        assert torch.equal(executor(X), before)
        executor.copyWeightsToDevice()
        assert torch.equal(executor(X), model(X))
        model.load_state_dict(Net().state_dict())
        assert not torch.equal(executor(X), model(X))

    def test_loading_a_state_dict_through_the_executor_uploads(self) -> None:
        model, other = Net(), Net()
        executor = inference(model)
        executor.load_state_dict(other.state_dict())
        assert not executor.isCompiled()
        assert torch.equal(executor(X), other(X))
        other = Net()
        report = executor.load_state_dict(other.state_dict())
        assert (report.missing_keys, report.unexpected_keys) == ([], [])
        assert torch.equal(executor(X), other(X))
        report = executor.load_state_dict({"first.bias": torch.zeros(4), "third": torch.ones(1)}, strict=False)
        assert report.unexpected_keys == ["third"]
        assert torch.equal(executor(X), model(X))

    def test_copying_to_the_device_discards_newer_weights_there(self) -> None:
        model, executor = trained()
        model.weight.data.fill_(10)
        executor(ONES)
        executor.copyWeightsToDevice()
        executor(ONES)
        assert model.weight.item() == 10 - RATE, "one run from 10, the one from 1 - RATE is gone"

    def test_edits_and_new_parameters_while_detached_count_at_the_next_attachment(self) -> None:
        model, executor = trained()
        executor.detachFromDevice()
        model.weight.data.fill_(5)
        executor(ONES)
        assert model.weight.item() == 5 - RATE
        executor.detachFromDevice()
        model.weight = nn.Parameter(torch.tensor([3.0]))
        assert executor(ONES)[0].tolist() == [3, 3]
        model = Net()
        executor = inference(model)
        executor(X)
        model.first = nn.Linear(5, 4)
        with pytest.raises(poptorch.Error, match=r"'first.weight' has shape \[4, 5\].*destroy\(\)"):
            executor.copyWeightsToDevice()


class TestDeviceToHost:
    """The table of section 9.2."""

    @pytest.mark.parametrize(
        "use",
        [
            lambda m, e: m.weight.data,
            lambda m, e: m.weight.shape,
            lambda m, e: str(m.weight),
            lambda m, e: 1 + m.weight,
            lambda m, e: torch.equal(torch.ones(1), m.weight),
            lambda m, e: torch.stack([torch.ones(1), m.weight]),
            lambda m, e: m(ONES),
            lambda m, e: list(m.parameters()),
            lambda m, e: m.state_dict(),
            lambda m, e: torch.save(m, io.BytesIO()),
            lambda m, e: copy.deepcopy(m),
            lambda m, e: e.state_dict(),
            lambda m, e: e.weight.data,
            lambda m, e: e.detachFromDevice(),
            lambda m, e: e.destroy(),
            lambda m, e: m.destroy(),
            lambda m, e: e.copyWeightsToHostIfNeeded(),
            lambda m, e: m.copyWeightsToHostIfNeeded(),
        ],
    )
    def test_one_transfer_at_the_first_of_these_then_none(self, use: Any, transfers: Counter[str]) -> None:
        model, executor = trained(runs=3)
        use(model, executor)
        assert (transfers["download"], transfers["upload"]) == (1, 1), "the upload is that of compiling"
        assert raw(model, "weight").item() == 1 - 3 * RATE
        model.weight.sum()
        list(model.parameters())
        assert transfers["download"] == 1

    @pytest.mark.parametrize(
        "use",
        [
            lambda m, e: e(ONES),
            lambda m, e: e.setOptimizer(e._optimisation.optimizer),
            lambda m, e: e._optimisation.optimizer.state_dict(),
            lambda m, e: e.model.weight,
            lambda m, e: e.copyWeightsToDevice(),
        ],
    )
    def test_these_transfer_nothing(self, use: Any, transfers: Counter[str]) -> None:
        model, executor = trained()
        use(model, executor)
        assert transfers["download"] == 0
        assert raw(model, "weight").item() == 1, "the host still has the value it started from"

    def test_parameters_of_submodules_trigger_too_but_none_of_inference(self, transfers: Counter[str]) -> None:
        model = Net()
        executor = inference(model)
        executor(X)
        model.state_dict()
        executor.state_dict()
        executor.detachFromDevice()
        assert transfers["download"] == 0
        executor = training(model)
        executor(X, Y)
        before = raw(model, "first.weight")
        assert not torch.equal(before, model.first.weight)
        assert transfers["download"] == 1

    def test_updates_made_before_a_call_failed_are_transferred_too(self) -> None:
        model, _, executor = scale(options=quiet(deviceIterations=2, enableFloatingPointExceptions=True))
        with pytest.raises(poptorch.Error, match="Floating point exception"):
            executor(torch.tensor([-3.0, 3e38]))
        assert model.weight.item() == 1 + 3 * RATE, "the first of two iterations"

    def test_an_explicit_copy_always_transfers(self, transfers: Counter[str]) -> None:
        """Asking says whether there was something to transfer. Weights are changed in place."""
        model, executor = trained()
        reference, data = model.weight, model.weight.data
        executor(ONES)
        assert executor.copyWeightsToHostIfNeeded() is True
        assert executor.copyWeightsToHostIfNeeded() is False
        before = transfers["download"]
        executor.copyWeightsToHost()
        executor.copyWeightsToHost()
        assert transfers["download"] == before + 2
        assert model.weight is reference
        assert data.item() == 1 - 2 * RATE

    def test_loading_optimiser_state_backs_the_weights_up_at_the_next_run(self, transfers: Counter[str]) -> None:
        model, optimiser, executor = scale(momentum=0.5)
        executor(ONES)
        optimiser.load_state_dict(optimiser.state_dict())
        assert transfers["download"] == 0
        checkpoint = copy.deepcopy(optimiser.state_dict())
        executor(ONES)
        assert transfers["download"] == 1
        # v = 1, w = 1 - R; then v = 0.5 * 1 + 1.
        assert model.weight.item() == 1 - RATE - 1.5 * RATE
        model.load_state_dict({"weight": torch.tensor([1 - RATE])})
        optimiser.load_state_dict(checkpoint)
        executor(ONES)
        assert model.weight.item() == 1 - RATE - 1.5 * RATE


# What is trained, and what is made of it for inference.
FOLLOWERS: dict[str, Callable[[Net], tuple[poptorch.PoplarExecutor, Any]]] = {
    "of the same module": lambda net: (training(net), net),
    "of the training executor": lambda net: ((train := training(net)), train),
    "of a submodule": lambda net: (training(with_loss(lambda m, x, y: m.network(x), network=net)), net),
    "of a module around it": lambda net: (training(net), nn.Sequential(net, nn.Softmax(-1))),
}


class TestTrainingWithInference:
    """Section 9.3: an inference executor made after the training one follows it."""

    @pytest.mark.parametrize("kind", FOLLOWERS)
    def test_it_sees_trained_weights_and_asks_for_them_once(self, kind: str, transfers: Counter[str]) -> None:
        train, followed = FOLLOWERS[kind](Net())
        valid, plain = inference(followed), getattr(followed, "model", followed)
        results = [valid(X)]
        for _ in range(2):
            train(X, Y)
            before = transfers["download"]
            results.append(valid(X))
            after = copy.copy(transfers)
            assert after["download"] == before + 1
            assert torch.equal(valid(X), results[-1])
            assert transfers == after
            assert torch.equal(results[-1], plain(X))
            assert not torch.equal(results[-1], results[-2])

    def test_it_is_uploaded_again_when_the_host_was_brought_up_to_date_by_something_else(self) -> None:
        model = Net()
        train, valid = training(model), inference(model)
        valid(X)
        train(X, Y)
        model.state_dict()
        assert torch.equal(valid(X), model(X))
        nn.init.zeros_(model.second.weight)
        train.copyWeightsToDevice()
        assert torch.equal(valid(X), model(X))

    def test_made_before_the_training_wrapper_it_does_not_follow(self, transfers: Counter[str]) -> None:
        model = Net()
        valid = inference(model)
        before = valid(X)
        train = training(model)
        train(X, Y)
        state = copy.copy(transfers)
        assert torch.equal(valid(X), before)
        assert transfers == state

    @pytest.mark.parametrize("together", [False, True])
    def test_one_device_after_the_other_or_both_also_without_gradients(self, together: bool) -> None:
        model = Net()
        train, valid = training(model), inference(model)
        for surroundings in (torch.enable_grad, torch.inference_mode, torch.no_grad):
            with surroundings():
                train(X, Y)
                if not together:
                    train.detachFromDevice()
                result = valid(X)
            assert torch.equal(result, model(X))
            if not together:
                valid.detachFromDevice()
        assert train(X, Y)[0].shape == (4, 2)

    @pytest.mark.parametrize("destroyed", [False, True])
    def test_weights_arrive_even_after_the_training_executor_is_gone(self, destroyed: bool) -> None:
        model = Net()
        train, valid = training(model), inference(model)
        before = valid(X)
        train(X, Y)
        if destroyed:
            train.destroy()
        else:
            valid(X)
        del train
        after = valid(X)
        assert not torch.equal(before, after)
        assert torch.equal(after, model(X))

    def test_automatic_transfers_are_those_of_the_public_methods_which_programs_replace_to_count_them(self) -> None:
        """Weights that a model on the CPU shares with the trained one arrive with one transfer, and do not recur."""
        model, train = trained()
        counted: Counter[str] = Counter()

        def replace(executor: Any, name: str) -> None:
            original = getattr(executor, name)
            setattr(executor, name, lambda: (counted.update([name]), model.weight.sum(), original())[2])

        replace(train, "copyWeightsToHost")
        on_cpu, valid = Scale(), inference(model)
        replace(valid, "copyWeightsToDevice")
        on_cpu.weight = model.weight
        valid(ONES)
        for runs in (2, 3):
            train(ONES)
            for _ in range(2):
                assert on_cpu(ONES)[0].tolist() == valid(ONES)[0].tolist() == [1 - runs * RATE] * 2
            assert counted == {"copyWeightsToHost": runs, "copyWeightsToDevice": runs - 1}


def saved_without_trust(value: Any) -> Any:
    with torch.serialization.safe_globals([Scale, set]):
        return support.saved(value, weights_only=True)


class TestCopiesOfModules:
    """Section 9.5: what leaves the process, or is copied, is unwrapped and up to date."""

    def test_a_state_dict_holds_plain_tensors_under_the_same_names_and_loads_without_poptorch(self) -> None:
        model, executor = trained(runs=2)
        model.register_buffer("extra", torch.ones(1))
        state = model.state_dict()
        assert list(state) == ["weight", "extra"]
        assert {type(value) for value in state.values()} == {torch.Tensor}
        assert support.saved(state, weights_only=True)["weight"].item() == 1 - 2 * RATE
        assert executor.isAttachedToDevice()

    @pytest.mark.parametrize("duplicate", [copy.deepcopy, support.pickled, support.saved, saved_without_trust])
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


class TestCopiesOfExecutors:
    @pytest.mark.parametrize("duplicate", [copy.deepcopy, support.pickled, support.saved])
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

    @pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, support.pickled])
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
    def forward(model: Any, token: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(model.out(model.embedding(token)), target)

    model = with_loss(forward, embedding=nn.Embedding(5, 3), out=nn.Linear(3, 5, bias=False))
    model.out.weight = model.embedding.weight
    plain = copy.deepcopy(model)
    batch = torch.tensor([0, 1, 4]), torch.tensor([3, 2, 4])
    executor = training(model, lr=0.5)
    executor(*batch)
    plain(*batch)[1].backward()
    torch.testing.assert_close(model.out.weight, plain.out.weight - 0.5 * plain.out.weight.grad)
    assert model.out.weight is model.embedding.weight
    state = model.state_dict()
    assert state["out.weight"].data_ptr() == state["embedding.weight"].data_ptr()
    model.function = None
    for twin in (copy.deepcopy(model), support.pickled(model)):
        assert twin.out.weight is twin.embedding.weight


class TestSharedParameters:
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
