"""Buffers and constants of a model on the device (executor reference, sections 4 and 11)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from executor_support import Module, inference, quiet, raw, training
from torch import Tensor, nn

import poptorch

ONE = torch.ones(1)


def counter(start: Tensor | None = None) -> Any:
    """Adds 1 to a buffer in every forward pass and returns it."""

    def forward(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        model.count += 1
        return model.count * 1, poptorch.identity_loss(model.weight * x, "sum")

    return Module(forward, {"count": torch.zeros(1) if start is None else start}, weight=nn.Parameter(torch.ones(1)))


class TestFloatBuffers:
    def test_they_persist_between_calls_and_are_read_with_an_explicit_copy(self) -> None:
        model = counter()
        executor = inference(model)
        executor.compile(ONE)
        assert [executor(ONE)[0].item() for _ in range(3)] == [1, 2, 3]
        assert model.count.item() == 0
        executor.copyWeightsToHost()
        assert model.count.item() == 3

    def test_they_change_once_for_each_micro_batch_also_during_accumulation(self) -> None:
        model = counter()
        executor = training(model, quiet(deviceIterations=2, accumulation=3, outputMode=poptorch.OutputMode.All))
        assert executor(torch.ones(6))[0].tolist() == [1, 2, 3, 4, 5, 6]
        assert model.count.item() == 6, "read after training: synchronised by itself"

    def test_detaching_an_inference_executor_loses_them(self) -> None:
        executor = inference(counter())
        executor(ONE)
        executor.detachFromDevice()
        assert executor(ONE)[0].item() == 1
        executor.copyWeightsToHost()
        executor.detachFromDevice()
        assert executor(ONE)[0].item() == 2

    def test_deep_copies_have_their_own(self) -> None:
        model = counter()
        executor = training(model)
        executor(ONE)
        twin = copy.deepcopy(model)
        executor(ONE)
        assert (raw(twin, "count").item(), model.count.item()) == (1, 2)
        assert type(twin.count) is Tensor


class TestFrozenBuffers:
    @pytest.mark.parametrize("start", [torch.tensor([5]), torch.tensor([5], dtype=torch.int32)])
    def test_integer_buffers_are_constants_of_the_compilation(self, start: Tensor) -> None:
        model = counter(start)
        executor = inference(model)
        assert [executor(ONE)[0].item() for _ in range(3)] == [6, 6, 6]
        model.count.fill_(100)
        executor.copyWeightsToDevice()
        assert executor(ONE)[0].item() == 6
        executor.copyWeightsToHost()
        assert model.count.item() == 100
        executor.destroy()
        assert executor(ONE)[0].item() == 101

    def test_the_log_names_those_that_forward_changes(self, caplog: pytest.LogCaptureFixture) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            loss = model.norm(x).mean()
            with torch.no_grad():
                model.rows.index_copy_(0, model.order[model.next], x[:1, 0])
                model.next.copy_((model.next + 1) % 3)
            return poptorch.identity_loss(loss + model.rows.sum(), "none")

        buffers = {"rows": torch.zeros(3), "next": torch.tensor([0]), "order": torch.tensor([2, 0, 1])}
        training(Module(forward, buffers, norm=nn.BatchNorm1d(1)))(torch.ones(2, 1))
        (warning,) = [record.getMessage() for record in caplog.records if "constants of" in record.getMessage()]
        assert "What forward writes to next is lost" in warning

    def test_so_are_bool_buffers_and_integer_parameters(self) -> None:
        shift = nn.Parameter(torch.tensor([3, 4]), requires_grad=False)
        mask = torch.tensor([True, False])
        model: Any = Module(lambda m, x: torch.where(m.mask, x, x + m.shift), {"mask": mask}, shift=shift)
        executor = inference(model)
        assert executor(torch.zeros(2)).tolist() == [0, 4]
        model.mask.fill_(False)
        model.shift.data.fill_(9)
        executor.copyWeightsToDevice()
        assert executor(torch.zeros(2)).tolist() == [0, 4]


class TestBatchNorm:
    @staticmethod
    def model() -> Any:
        def forward(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            out = model.norm(x)
            return out, poptorch.identity_loss(out, "sum")

        return Module(forward, norm=nn.BatchNorm1d(2))

    @pytest.mark.parametrize(
        ("options", "batches"),
        [
            (quiet(deviceIterations=2, accumulation=2), slice(None)),  # updated for each micro-batch
            (quiet(replicationFactor=4), slice(1)),  # each replica has its own, and the first one's is read
        ],
    )
    def test_statistics_follow_pytorchs_formula(self, options: poptorch.Options, batches: slice) -> None:
        model, plain, x = self.model(), self.model(), torch.randn(12, 2)
        executor = training(model, options)
        executor(x)
        for part in x.split(3)[batches]:
            plain(part)
        torch.testing.assert_close(model.norm.running_mean, plain.norm.running_mean)
        torch.testing.assert_close(model.norm.running_var, plain.norm.running_var)
        assert model.norm.num_batches_tracked.item() == 0, "the batch counter never advances"

    def test_a_cumulative_average_is_refused_by_name_where_it_would_be_kept(self) -> None:
        """PyTorch reads the batch counter in Python for momentum=None; in eval mode it does not."""
        model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, momentum=None))
        x = torch.arange(12.0).reshape(4, 3)
        with pytest.raises(poptorch.Error, match=r"BatchNorm\(momentum=None\) .* \(module '1'\).*momentum=0\.1"):
            inference(model.train())(x)
        torch.testing.assert_close(inference(model.eval())(x), model(x))

    def test_in_eval_mode_they_stay(self) -> None:
        model = self.model().eval()
        executor = training(model)
        executor(torch.randn(4, 2))
        assert model.norm.running_mean.tolist() == [0, 0]


class TestReplicas:
    def test_a_buffer_changed_in_place_cannot_be_broadcast(self) -> None:
        words = r"PopTorch does not support broadcasting buffers.*broadcastBuffers\(False\).*'count'"
        with pytest.raises(poptorch.Error, match=words):
            inference(counter(), quiet(replicationFactor=2))(torch.ones(2))

    def test_without_broadcasting_each_replica_owns_one(self) -> None:
        model: Any = Module(lambda m, x: m.total.add_(x) * 1, {"total": torch.zeros(1)})
        executor = inference(model, quiet(replicationFactor=2, broadcastBuffers=False))
        executor(torch.tensor([1.0, 10.0]))
        assert executor(torch.tensor([1.0, 10.0])).tolist() == [2, 20]
        executor.copyWeightsToHost()
        assert model.total.item() == 2

    def test_groups_that_cover_all_replicas_are_no_replication(self) -> None:
        options = quiet(replicationFactor=2).inputReplicaGrouping(2, poptorch.CommGroupType.Consecutive)
        assert inference(counter(), options)(ONE)[0].tolist() == [1, 1]

    def test_a_buffer_that_is_only_read_is_fine(self) -> None:
        model = Module(lambda m, x: x * m.factor, {"factor": torch.tensor([2.0])})
        assert inference(model, quiet(replicationFactor=2))(torch.ones(2)).tolist() == [2, 2]


class TestNamedBuffers:
    @staticmethod
    def two() -> Any:
        buffers = {"first": torch.zeros(1), "second": torch.zeros(1), "steps": torch.tensor([0])}
        weight = nn.Parameter(torch.zeros(1))
        return Module(lambda m, x: torch.cat([m.first, m.second, m.weight]) + 0 * x, buffers, weight=weight)

    def test_only_those_are_uploaded(self) -> None:
        model = self.two()
        executor = inference(model, quiet(updatableNamedBuffers=["second"]))
        executor(ONE)
        for tensor in (model.first, model.second, model.weight.data):
            tensor.fill_(7)
        executor.copyNamedBuffersToDevice()
        assert executor(ONE).tolist() == [0, 7, 0]

    def test_without_names_there_is_nothing_to_copy(self) -> None:
        executor = inference(self.two())
        executor(ONE)
        with pytest.raises(poptorch.Error, match=r"No named buffers marked as updatable.*updatableNamedBuffers"):
            executor.copyNamedBuffersToDevice()

    @pytest.mark.parametrize("name", ["third", "weight", "steps"])
    def test_names_that_are_no_floating_point_buffers_fail_at_compilation(self, name: str) -> None:
        executor = inference(self.two(), quiet(updatableNamedBuffers=["first", name]))
        with pytest.raises(poptorch.Error, match=f"no floating-point buffer named {name}. It has: first, second"):
            executor(ONE)
        assert not executor.isCompiled()


REASSIGNED = "is reassigned within the model when calling the forward method"
REMOVED = "is removed from the model when calling the forward method"
CHANGES: dict[str, Callable[[Any], Any]] = {
    f"Buffer b {REASSIGNED}": lambda m: setattr(m, "b", m.b + 1),
    f"Parameter p {REASSIGNED}": lambda m: setattr(m, "p", nn.Parameter(m.p + 1)),
    # Momentum encoders are often written so.
    f"Parameter p {REASSIGNED} ": lambda m: setattr(m.p, "data", m.p.data * 0.9),
    f"Buffer b {REASSIGNED} ": lambda m: setattr(m.b, "data", m.b.data * 0.9),
    f"Buffer b {REMOVED}": lambda m: delattr(m, "b"),
    f"Parameter p {REMOVED}": lambda m: delattr(m, "p"),
}


class TestReplacing:
    """Registered tensors must be changed in place (section 4)."""

    @staticmethod
    def model(change: Callable[[Any], Any]) -> Any:
        parameter = nn.Parameter(torch.ones(1), requires_grad=False)
        return Module(lambda m, x: (change(m), x)[1], {"b": torch.ones(1)}, p=parameter)

    @pytest.mark.parametrize("words", CHANGES)
    def test_it_is_refused_and_the_module_is_as_it_was(self, words: str) -> None:
        model = self.model(CHANGES[words])
        buffer, parameter = model.b, model.p
        with pytest.raises(poptorch.Error, match=words.strip()) as refusal:
            inference(model)(ONE)
        assert ".copy_(src) to copy data from a source tensor" in refusal.value.message
        assert model.b is buffer
        assert model.p is parameter

    def test_data_that_stays_where_it_is_is_no_replacement(self) -> None:
        model = self.model(lambda m: (m.float(), m.p.data.mul_(2), m.b.data.copy_(m.b.data * 3)))
        executor = inference(model)
        executor(ONE)
        executor.copyWeightsToHost()
        assert (model.p.item(), model.b.item()) == (2, 3)

    def test_buffers_of_batch_norm_are_exempt(self) -> None:
        class Resets(nn.BatchNorm1d):
            def forward(self, x: Tensor) -> Tensor:
                self.running_mean = self.running_mean * 0
                return super().forward(x)

        assert inference(Resets(2).eval())(torch.ones(3, 2)).shape == (3, 2)
