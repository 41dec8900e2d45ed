"""Buffers and constants of a model on the device (executor reference, sections 4 and 11)."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from executor_support import inference, quiet, raw, training
from torch import Tensor, nn

import poptorch

ONE = torch.ones(1)


class Counter(nn.Module):
    """Adds 1 to a buffer in every forward pass and returns it."""

    def __init__(self, start: Tensor | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("count", torch.zeros(1) if start is None else start)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.count += 1
        return self.count * 1, poptorch.identity_loss(self.weight * x, "sum")


class TestFloatBuffers:
    def test_they_persist_between_calls(self) -> None:
        executor = inference(Counter())
        assert [executor(ONE)[0].item() for _ in range(3)] == [1, 2, 3]

    def test_they_change_once_for_each_micro_batch_also_during_accumulation(self) -> None:
        options = quiet().deviceIterations(2).outputMode(poptorch.OutputMode.All)
        options.Training.gradientAccumulation(3)
        model = Counter()
        executor = training(model, options)
        assert executor(torch.ones(6))[0].tolist() == [1, 2, 3, 4, 5, 6]
        assert model.count.item() == 6, "read after training: synchronised by itself"

    def test_after_inference_they_are_read_with_an_explicit_copy(self) -> None:
        model = Counter()
        executor = inference(model)
        executor(ONE)
        executor(ONE)
        assert model.count.item() == 0
        executor.copyWeightsToHost()
        assert model.count.item() == 2

    def test_detaching_an_inference_executor_loses_them(self) -> None:
        model = Counter()
        executor = inference(model)
        executor(ONE)
        executor.detachFromDevice()
        assert executor(ONE)[0].item() == 1
        executor.copyWeightsToHost()
        executor.detachFromDevice()
        assert executor(ONE)[0].item() == 2

    def test_tracing_leaves_the_hosts_value_alone(self) -> None:
        model = Counter()
        inference(model).compile(ONE)
        assert model.count.item() == 0


class TestFrozenBuffers:
    @pytest.mark.parametrize("start", [torch.tensor([5]), torch.tensor([5], dtype=torch.int32)])
    def test_integer_buffers_are_constants_of_the_compilation(self, start: Tensor) -> None:
        model = Counter(start)
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
        class Queue(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("rows", torch.zeros(3))
                self.register_buffer("next", torch.zeros(1, dtype=torch.long))
                self.register_buffer("order", torch.tensor([2, 0, 1]))
                self.norm = nn.BatchNorm1d(1)

            def forward(self, x: Tensor) -> Tensor:
                loss = self.norm(x).mean()
                with torch.no_grad():
                    self.rows.index_copy_(0, self.order[self.next], x[:1, 0])
                    self.next.copy_((self.next + 1) % 3)
                return poptorch.identity_loss(loss + self.rows.sum(), "none")

        training(Queue())(torch.ones(2, 1))
        (warning,) = [record.getMessage() for record in caplog.records if "constants of" in record.getMessage()]
        assert "What forward writes to next is lost" in warning

    def test_so_are_bool_buffers_and_integer_parameters(self) -> None:
        class Masked(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("mask", torch.tensor([True, False]))
                self.shift = nn.Parameter(torch.tensor([3, 4]), requires_grad=False)

            def forward(self, x: Tensor) -> Tensor:
                return torch.where(self.mask, x, x + self.shift)

        model = Masked()
        executor = inference(model)
        assert executor(torch.zeros(2)).tolist() == [0, 4]
        model.mask.fill_(False)
        model.shift.data.fill_(9)
        executor.copyWeightsToDevice()
        assert executor(torch.zeros(2)).tolist() == [0, 4]


class TestBatchNorm:
    @staticmethod
    def model() -> nn.Module:
        class Normed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.norm = nn.BatchNorm1d(2)

            def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
                out = self.norm(x)
                return out, poptorch.identity_loss(out, "sum")

        return Normed()

    def test_statistics_are_updated_for_each_micro_batch_with_pytorchs_formula(self) -> None:
        torch.manual_seed(0)
        model, plain = self.model(), self.model()
        options = quiet().deviceIterations(2)
        options.Training.gradientAccumulation(2)
        x = torch.randn(12, 2)
        executor = training(model, options)
        executor(x)
        for part in x.split(3):
            plain(part)
        torch.testing.assert_close(model.norm.running_mean, plain.norm.running_mean)
        torch.testing.assert_close(model.norm.running_var, plain.norm.running_var)

    def test_the_batch_counter_never_advances(self) -> None:
        model = self.model()
        executor = training(model)
        executor(torch.randn(4, 2))
        assert model.norm.num_batches_tracked.item() == 0

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

    def test_with_replicas_each_has_its_own_and_the_first_ones_is_read(self) -> None:
        model, plain = self.model(), self.model()
        x = torch.randn(8, 2)
        executor = training(model, quiet().replicationFactor(2))
        executor(x)
        plain(x[:4])
        torch.testing.assert_close(model.norm.running_mean, plain.norm.running_mean)


class TestReplicas:
    def test_a_buffer_changed_in_place_cannot_be_broadcast(self) -> None:
        with pytest.raises(
            poptorch.Error,
            match=r"PopTorch does not support broadcasting buffers.*broadcastBuffers\(False\).*'count'",
        ):
            inference(Counter(), quiet().replicationFactor(2))(torch.ones(2))

    def test_without_broadcasting_each_replica_owns_one(self) -> None:
        class Sums(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("total", torch.zeros(1))

            def forward(self, x: Tensor) -> Tensor:
                self.total += x
                return self.total * 1

        model = Sums()
        executor = inference(model, quiet().replicationFactor(2).broadcastBuffers(False))
        executor(torch.tensor([1.0, 10.0]))
        assert executor(torch.tensor([1.0, 10.0])).tolist() == [2, 20]
        executor.copyWeightsToHost()
        assert model.total.item() == 2

    def test_groups_that_cover_all_replicas_are_no_replication(self) -> None:
        options = quiet().replicationFactor(2).inputReplicaGrouping(2, poptorch.CommGroupType.Consecutive)
        assert inference(Counter(), options)(ONE)[0].tolist() == [1, 1]

    def test_a_buffer_that_is_only_read_is_fine(self) -> None:
        class Scaled(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("factor", torch.tensor([2.0]))

            def forward(self, x: Tensor) -> Tensor:
                return x * self.factor

        assert inference(Scaled(), quiet().replicationFactor(2))(torch.ones(2)).tolist() == [2, 2]


class TestNamedBuffers:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("first", torch.zeros(1))
            self.register_buffer("second", torch.zeros(1))
            self.register_buffer("steps", torch.zeros(1, dtype=torch.int64))
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([self.first, self.second, self.weight]) + 0 * x

    def test_only_those_are_uploaded(self) -> None:
        model = self.Two()
        executor = inference(model, quiet().updatableNamedBuffers(["second"]))
        executor(ONE)
        for tensor in (model.first, model.second, model.weight.data):
            tensor.fill_(7)
        executor.copyNamedBuffersToDevice()
        assert executor(ONE).tolist() == [0, 7, 0]

    def test_without_names_there_is_nothing_to_copy(self) -> None:
        executor = inference(self.Two())
        executor(ONE)
        with pytest.raises(poptorch.Error, match=r"No named buffers marked as updatable.*updatableNamedBuffers"):
            executor.copyNamedBuffersToDevice()

    @pytest.mark.parametrize("name", ["third", "weight", "steps"])
    def test_names_that_are_no_floating_point_buffers_fail_at_compilation(self, name: str) -> None:
        executor = inference(self.Two(), quiet().updatableNamedBuffers(["first", name]))
        with pytest.raises(poptorch.Error, match=f"no floating-point buffer named {name}. It has: first, second"):
            executor(ONE)
        assert not executor.isCompiled()


class TestReplacing:
    """Registered tensors must be changed in place (section 4)."""

    @staticmethod
    def model(change: Any) -> nn.Module:
        class Changes(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("b", torch.ones(1))
                self.p = nn.Parameter(torch.ones(1), requires_grad=False)

            def forward(self, x: Tensor) -> Tensor:
                change(self)
                return x

        return Changes()

    @staticmethod
    def set_parameter(m: Any) -> None:
        m.p = nn.Parameter(m.p + 1)

    @staticmethod
    def set_buffer(m: Any) -> None:
        m.b = m.b + 1

    @staticmethod
    def set_data_of_parameter(m: Any) -> None:
        m.p.data = m.p.data * 0.9

    @staticmethod
    def set_data_of_buffer(m: Any) -> None:
        m.b.data = m.b.data * 0.9

    @staticmethod
    def delete_buffer(m: Any) -> None:
        del m.b

    @staticmethod
    def delete_parameter(m: Any) -> None:
        del m.p

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ("set_buffer", "Buffer b is reassigned within the model when calling the forward method"),
            ("set_parameter", "Parameter p is reassigned within the model when calling the forward method"),
            # Momentum encoders are often written so.
            ("set_data_of_parameter", "Parameter p is reassigned within the model when calling the forward method"),
            ("set_data_of_buffer", "Buffer b is reassigned within the model when calling the forward method"),
            ("delete_buffer", "Buffer b is removed from the model when calling the forward method"),
            ("delete_parameter", "Parameter p is removed from the model when calling the forward method"),
        ],
    )
    def test_it_is_refused_and_the_module_is_as_it_was(self, change: str, words: str) -> None:
        model = self.model(getattr(self, change))
        buffer, parameter = model.b, model.p
        with pytest.raises(poptorch.Error, match=words) as refusal:
            inference(model)(ONE)
        assert ".copy_(src) to copy data from a source tensor" in refusal.value.message
        assert model.b is buffer
        assert model.p is parameter

    def test_data_that_stays_where_it_is_is_no_replacement(self) -> None:
        def to_the_same_type(m: Any) -> None:
            m.float()
            m.p.data.mul_(2)
            m.b.data.copy_(m.b.data * 3)

        model = self.model(to_the_same_type)
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


def test_deep_copies_have_their_own_buffers() -> None:
    model = Counter()
    executor = training(model)
    executor(ONE)
    twin = copy.deepcopy(model)
    executor(ONE)
    assert (raw(twin, "count").item(), model.count.item()) == (1, 2)
    assert type(twin.count) is Tensor
