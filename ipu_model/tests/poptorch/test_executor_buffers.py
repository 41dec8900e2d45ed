"""Buffers, constants and plain tensor attributes of a model on the device (executor reference, sections 4 and 11)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from executor_support import Module, gradient, inference, quiet, raw, training, with_loss
from torch import Tensor, nn

import poptorch

ZERO, ONE, X = torch.zeros(1), torch.ones(1), torch.tensor([1.0, 2.0])


def counter(start: Tensor = ZERO) -> Any:
    def forward(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        model.count += 1
        return model.count * 1, poptorch.identity_loss(model.weight * x, "sum")

    return Module(forward, {"count": start.clone()}, weight=nn.Parameter(torch.ones(1)))


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
        twin = copy.deepcopy(model)
        executor(torch.ones(6))
        assert (raw(twin, "count").item(), model.count.item()) == (6, 12), "deep copies have their own"
        assert type(twin.count) is Tensor

    def test_detaching_an_inference_executor_loses_them(self) -> None:
        executor = inference(counter())
        executor(ONE)
        executor.detachFromDevice()
        assert executor(ONE)[0].item() == 1
        executor.copyWeightsToHost()
        executor.detachFromDevice()
        assert executor(ONE)[0].item() == 2


class TestFrozenBuffers:
    @pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
    def test_integer_buffers_are_constants_of_the_compilation(self, dtype: torch.dtype) -> None:
        model = counter(torch.tensor([5], dtype=dtype))
        executor = inference(model)
        assert [executor(ONE)[0].item() for _ in range(3)] == [6, 6, 6]
        assert model.count.item() == 5
        model.count.fill_(100)
        executor.copyWeightsToDevice()
        assert executor(ONE)[0].item() == 6
        executor.copyWeightsToHost()
        assert model.count.item() == 100
        executor.destroy()
        assert executor(ONE)[0].item() == 101

    def test_so_are_bool_buffers_and_integer_parameters(self) -> None:
        shift = nn.Parameter(torch.tensor([3, 4]), requires_grad=False)
        mask = torch.tensor([True, False])
        model: Any = Module(lambda m, x: torch.where(m.mask, x, x + m.shift), {"mask": mask}, shift=shift)
        executor = inference(model)
        for _ in range(2):
            assert executor(torch.zeros(2)).tolist() == [0, 4]
            model.mask.fill_(False)
            model.shift.data.fill_(9)
            executor.copyWeightsToDevice()

    def test_the_log_names_those_that_forward_changes(self, caplog: pytest.LogCaptureFixture) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            with torch.no_grad():
                model.rows.copy_(x[:, 0])
                model.next.copy_((model.next + 1) % 3)
            return poptorch.identity_loss(model.norm(x).mean() + model.rows.sum(), "none")

        buffers = {"rows": torch.zeros(2), "next": torch.tensor([0])}
        training(Module(forward, buffers, norm=nn.BatchNorm1d(1)))(torch.ones(2, 1))
        (warning,) = [record.getMessage() for record in caplog.records if "constants of" in record.getMessage()]
        assert "What forward writes to next is lost" in warning


class TestBatchNorm:
    @pytest.mark.parametrize(
        ("options", "train", "batches"),
        [
            (quiet(deviceIterations=2, accumulation=2), True, slice(None)),  # updated for each micro-batch
            (quiet(replicationFactor=4), True, slice(1)),  # each replica has its own, and the first one's is read
            (quiet(), False, slice(0)),
        ],
    )
    def test_statistics_follow_pytorchs_formula(self, options: poptorch.Options, train: bool, batches: slice) -> None:
        plain, x = nn.BatchNorm1d(2), torch.randn(12, 2)
        model = with_loss(lambda m, x: m.norm(x), norm=copy.deepcopy(plain))
        executor = training(model.train(train), options)
        executor(x)
        for part in x.split(3)[batches]:
            plain(part)
        torch.testing.assert_close(model.norm.running_mean, plain.running_mean)
        torch.testing.assert_close(model.norm.running_var, plain.running_var)
        assert model.norm.num_batches_tracked.item() == 0, "the batch counter never advances"

    @pytest.mark.parametrize("norm", [nn.BatchNorm1d(3), nn.InstanceNorm1d(3, track_running_stats=True)])
    def test_an_inference_model_in_training_mode_normalises_by_its_batch_and_keeps_its_statistics(
        self, norm: nn.Module
    ) -> None:
        model, x = norm.train(), torch.randn(4, 3, 5)
        before = copy.deepcopy(model.state_dict())
        wrapped = inference(model)
        for _ in range(2):
            torch.testing.assert_close(wrapped(x), copy.deepcopy(model)(x))
        wrapped.copyWeightsToHost()
        torch.testing.assert_close(model.state_dict(), before)

    def test_a_cumulative_average_is_refused_by_name_where_it_would_be_kept(self) -> None:
        """PyTorch reads the batch counter in Python for momentum=None; in eval mode it does not."""
        model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, momentum=None))
        x = torch.arange(12.0).reshape(4, 3)
        with pytest.raises(poptorch.Error, match=r"BatchNorm\(momentum=None\) .* \(module '1'\).*momentum=0\.1"):
            inference(model.train())(x)
        torch.testing.assert_close(inference(model.eval())(x), model(x))


class TestReplicas:
    def test_a_buffer_changed_in_place_cannot_be_broadcast(self) -> None:
        words = r"PopTorch does not support broadcasting buffers.*broadcastBuffers\(False\).*'count'"
        with pytest.raises(poptorch.Error, match=words):
            inference(counter(), quiet(replicationFactor=2))(torch.ones(2))
        reads = Module(lambda m, x: x * m.factor, {"factor": torch.tensor([2.0])})
        assert inference(reads, quiet(replicationFactor=2))(torch.ones(2)).tolist() == [2, 2]

    def test_without_broadcasting_each_replica_owns_one(self) -> None:
        model: Any = Module(lambda m, x: m.total.add_(x) * 1, {"total": torch.zeros(1)})
        executor = inference(model, quiet(replicationFactor=2, broadcastBuffers=False))
        executor(torch.tensor([1.0, 10.0]))
        assert executor(torch.tensor([1.0, 10.0])).tolist() == [2, 20]
        executor.copyWeightsToHost()
        assert model.total.item() == 2
        # Groups that cover all replicas are no replication.
        options = quiet(replicationFactor=2, inputReplicaGrouping=(2, poptorch.CommGroupType.Consecutive))
        assert inference(counter(), options)(ONE)[0].tolist() == [1, 1]


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


class TestReplacing:
    @staticmethod
    def model(change: Callable[[Any], Any]) -> Any:
        frozen = nn.Parameter(torch.ones(1), requires_grad=False)
        return Module(lambda m, x: (change(m), x)[1], {"b": torch.ones(1)}, p=frozen)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda m: setattr(m, "b", m.b + 1), "Buffer b is reassigned within"),
            (lambda m: setattr(m, "p", nn.Parameter(m.p + 1)), "Parameter p is reassigned within"),
            (lambda m: setattr(m.p, "data", m.p.data * 0.9), "Parameter p is reassigned within"),  # a momentum encoder
            (lambda m: delattr(m, "b"), "Buffer b is removed from"),
            (lambda m: delattr(m, "p"), "Parameter p is removed from"),
        ],
    )
    def test_it_is_refused_and_the_module_is_as_it_was(self, change: Any, words: str) -> None:
        model = self.model(change)
        before = model.b, model.p
        with pytest.raises(poptorch.Error, match=f"{words} the model when calling the forward method") as refusal:
            inference(model)(ONE)
        assert ".copy_(src) to copy data from a source tensor" in refusal.value.message
        assert model.b is before[0]
        assert model.p is before[1]

    def test_data_that_stays_where_it_is_is_no_replacement_and_buffers_of_batch_norm_are_exempt(self) -> None:
        model = self.model(lambda m: (m.float(), m.p.data.mul_(2), m.b.data.copy_(m.b.data * 3)))
        executor = inference(model)
        executor(ONE)
        executor.copyWeightsToHost()
        assert (model.p.item(), model.b.item()) == (2, 3)
        norm = nn.BatchNorm1d(2).eval()
        norm.register_forward_pre_hook(lambda m, args: setattr(m, "running_mean", m.running_mean * 0))
        assert inference(norm)(torch.ones(3, 2)).shape == (3, 2)


class TestAttributesThatForwardWrites:
    """PopTorch runs ops of host tensors alone on the host, at once: a write stays, and replays know one value."""

    @pytest.mark.parametrize("in_place", [True, False])
    def test_with_tensors_of_the_device_it_counts_as_a_constant_with_its_present_value(self, in_place: bool) -> None:
        def forward(layer: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            before = x + layer.i
            layer.i = layer.i.add_(1) if in_place else layer.i + 1
            return before, x + layer.i

        layer: Any = Module(forward, i=torch.zeros(1))
        executor = inference(nn.Sequential(layer))
        assert [[t.tolist() for t in executor(X)] for _ in range(2)] == [[[1, 2], [2, 3]]] * 2
        assert layer.i.item() == 1

    def test_the_device_writes_to_its_own_copy(self) -> None:
        """Also through views; the host's tensor stays as it was, and each call starts from it."""

        def forward(model: Any, x: Tensor) -> tuple[Tensor, ...]:
            model.cache[0] = x
            model.cache[:, 1] += 10
            return model.cache, model.cache[0] * 2, x + 0

        model: Any = Module(forward, cache=torch.zeros(2, 2))
        executor = inference(model)
        for x in (X, 3 * X):
            cache, doubled, _ = executor(x)
            assert cache.tolist() == [[x[0], x[1] + 10], [0, 10]]
            assert doubled.tolist() == [2 * x[0], 2 * (x[1] + 10)]
        assert model.cache.tolist() == [[0, 0], [0, 0]]

    def test_a_tensor_of_the_device_has_no_use_after_the_trace_and_is_gone_from_the_next_one(self) -> None:
        """Also from lists and dicts. The model's own attributes are those of a copy, as in PopTorch."""

        def forward(model: Any, x: Tensor) -> Tensor:
            model.last = x
            model.seen.append(x)
            model.by_name["x"] = x
            model.calls.append(1)
            return model.last * len(model.seen)

        model: Any = Module(forward, last=torch.zeros(2), seen=[], by_name={}, calls=[])
        executor = inference(model)
        assert [executor(x).tolist() for x in (X, 2 * X)] == [[1, 2], [2, 4]]
        assert model.last.tolist() == [0, 0]
        for kept in (*model.seen, *model.by_name.values()):
            with pytest.raises(poptorch.Error, match="no data"):
                kept.tolist()
        assert model.calls == [1], "Python's own side effects stay"
        executor.destroy()
        assert executor(X).tolist() == [1, 2]
        assert (len(model.seen), list(model.by_name), model.calls) == (1, ["x"], [1, 1])

    def test_gradients_flow_through_what_the_device_wrote_and_leave_no_trace(self) -> None:
        layer = nn.Linear(2, 2, bias=False)
        model = with_loss(lambda m, x: m.state.copy_(m.layer(x)) * 3, state=torch.zeros(1, 2), layer=layer)
        torch.testing.assert_close(gradient(model, X[None]), 3 * X.expand(2, 2))
        assert not model.state.requires_grad

    def test_a_view_of_a_trained_weight_is_refused_by_name(self) -> None:
        """The device would never see what training makes of the weight."""
        layer = nn.Linear(2, 2)
        model = with_loss(lambda m, x: x @ m.turned + m.layer(x), layer=layer, turned=layer.weight.t())
        with pytest.raises(poptorch.Error, match=r"'layer.weight' is used through a reference"):
            training(model)(X[None])
        torch.testing.assert_close(inference(model)(X[None])[0], model(X[None])[0].detach())


class TestAttributesThatForwardReads:
    def test_python_may_read_them_also_in_a_namespace_and_nested_containers(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            scaled = x * model.scale.item() if bool(model.scale > 1) else x
            return scaled * model.held.pair[0].by

        held = SimpleNamespace(pair=[SimpleNamespace(by=torch.tensor([2.0, 3.0]))])
        assert inference(Module(forward, scale=torch.tensor(3.0), held=held))(X).tolist() == [6, 18]

    @pytest.mark.parametrize(
        "prior",
        [
            torch.distributions.Normal(torch.zeros(2), 1.0),
            torch.distributions.Independent(torch.distributions.Laplace(torch.zeros(2), torch.ones(2)), 1),
            torch.distributions.Exponential(2.0),
        ],
    )
    def test_random_numbers_of_their_values_differ_from_call_to_call(self, prior: Any) -> None:
        def forward(model: Any, x: Tensor) -> tuple[Tensor, ...]:
            return model.prior.log_prob(x), model.prior.sample((3, 2)), x * 0 + torch.normal(model.mean, 1.0)

        executor = inference(Module(forward, prior=prior, mean=torch.zeros(2)))
        density, *drawn = executor(X)
        torch.testing.assert_close(density, prior.log_prob(X))
        assert drawn[0].shape[:2] == (3, 2)
        assert not any(torch.equal(one, other) for one, other in zip(drawn, executor(X)[1:], strict=True))


ADJACENCY = torch.tensor([[0.0, 2.0], [3.0, 0.0]])


class TestSparseConstants:
    """The device has no sparse tensors: Python reads them on the host, products take them as dense constants."""

    @pytest.mark.filterwarnings("ignore:Sparse CSR")
    def test_products(self) -> None:
        def products(model: Any, x: Tensor) -> list[Tensor]:
            found, mm = [], torch.sparse.mm
            for a in (model.coo, model.csr):
                found += [mm(a, x), a @ x, torch.mm(a, x), torch.sparse.addmm(x, a, x) - x]
                found.append(mm(a.t(), x) * 0 + a.to_dense() @ x)
            return found

        model = Module(products, {"coo": ADJACENCY.to_sparse()}, csr=ADJACENCY.to_sparse_csr())
        assert [product.tolist() for product in inference(model)(X[:, None])] == [[[4.0], [3.0]]] * 10

    def test_what_they_say_of_themselves(self) -> None:
        def forward(model: Any, x: Tensor) -> tuple[Any, ...]:
            a = model.a.coalesce()
            rows, columns = a.indices()
            summed = torch.zeros(2).scatter_add(0, rows, a.values() * x[columns])
            return summed, a.sparse_dim(), a.is_sparse, tuple(a.shape)

        summed, *rest = inference(Module(forward, a=ADJACENCY.to_sparse()))(X)
        assert summed.tolist() == [4, 3]
        assert rest == [2, True, (2, 2)]
