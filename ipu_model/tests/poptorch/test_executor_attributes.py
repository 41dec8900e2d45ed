"""Plain tensor attributes of a model: they stay on the host until forward mixes them with tensors of the device."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from executor_support import Module, inference, training
from torch import Tensor, nn

import poptorch

X = torch.tensor([1.0, 2.0])


class TestWrites:
    """PopTorch runs ops of host tensors alone on the host, at once: a write stays, and replays know one value."""

    def test_the_example_of_the_user_guide(self) -> None:
        """`docs/user_guide/buffers.py`: without a buffer, the counter is 1 after every call, also on the host."""

        def forward(model: Any) -> Tensor:
            model.i += 1
            return model.i

        model: Any = Module(forward, i=torch.tensor([0.0]))
        executor = inference(model)
        with pytest.warns(UserWarning, match="Output expected to be on the IPU but is on cpu"):
            assert executor().tolist() == [1]
        assert executor().tolist() == [1]
        assert model.i.tolist() == [1]

    def test_with_tensors_of_the_device_it_counts_as_a_constant_with_its_present_value(self) -> None:
        def forward(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            before = x + model.i
            model.i += 1
            return before, x + model.i

        model: Any = Module(forward, i=torch.zeros(1))
        executor = inference(model)
        assert [[t.tolist() for t in executor(X)] for _ in range(2)] == [[[1, 2], [2, 3]]] * 2
        assert model.i.item() == 1

    def test_reassigning_one_of_a_submodule_stays_too(self) -> None:
        def forward(layer: Any, x: Tensor) -> Tensor:
            layer.i = layer.i + 1
            return x * layer.i

        layer = Module(forward, i=torch.ones(1))
        executor = inference(nn.Sequential(layer))
        assert [executor(X).tolist() for _ in range(2)] == [[2, 4]] * 2
        assert layer.i.item() == 2

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

    def test_a_tensor_of_the_device_in_an_attribute_is_gone_after_the_trace(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            model.last = x
            return model.last + 1

        model: Any = Module(forward, last=torch.zeros(2))
        executor = inference(model)
        assert [executor(x).tolist() for x in (X, 2 * X)] == [[2, 3], [3, 5]]
        assert model.last.tolist() == [0, 0]

    def test_so_is_one_in_a_list_or_dict(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            model.seen.append(x)
            model.by_name["x"] = x
            model.calls.append(1)
            return x * len(model.seen)

        model: Any = Module(forward, seen=[], by_name={}, calls=[])
        executor = inference(model)
        assert executor(X).tolist() == [1, 2]
        assert (model.seen, model.by_name) == ([], {})
        assert model.calls == [1], "Python's own side effects stay"
        executor.destroy()
        assert executor(X).tolist() == [1, 2]

    def test_gradients_flow_through_what_the_device_wrote_and_leave_no_trace(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            model.state.copy_(model.layer(x))
            return poptorch.identity_loss(model.state * 3, "sum")

        model: Any = Module(forward, state=torch.zeros(1, 2), layer=nn.Linear(2, 2, bias=False))
        before = model.layer.weight.detach().clone()
        executor = training(model, lr=1.0)
        executor(X[None])
        torch.testing.assert_close(before - model.layer.weight.detach(), 3 * X.expand(2, 2))
        assert not model.state.requires_grad

    def test_a_view_of_a_trained_weight_is_refused_by_name(self) -> None:
        """The device would never see what training makes of the weight."""

        def forward(model: Any, x: Tensor) -> Tensor:
            return poptorch.identity_loss(x @ model.turned + model.layer(x), "sum")

        layer = nn.Linear(2, 2)
        model: Any = Module(forward, layer=layer, turned=layer.weight.t())
        with pytest.raises(poptorch.Error, match=r"'layer.weight' is used through a reference"):
            training(model)(X[None])
        with torch.no_grad():
            torch.testing.assert_close(inference(model)(X[None]), model(X[None]))


@dataclass
class Scaled:
    by: Tensor


class TestReads:
    def test_python_may_read_its_value(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            return x * model.scale.item() if bool(model.scale > 1) else x

        assert inference(Module(forward, scale=torch.tensor(3.0)))(X).tolist() == [3, 6]

    @pytest.mark.parametrize(
        "prior",
        [
            torch.distributions.Normal(torch.zeros(2), 1.0), torch.distributions.Uniform(0.0, 3.0),
            torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2)), torch.distributions.Gamma(1.0, 2.0),
        ],
        ids=lambda prior: type(prior).__name__,
    )  # fmt: skip
    def test_a_distribution_may_hold_it(self, prior: Any) -> None:
        executor = inference(
            Module(lambda model, x: (model.prior.log_prob(x), model.prior.sample((3, 2))), prior=prior)
        )
        density, drawn = executor(X)
        torch.testing.assert_close(density, prior.log_prob(X))
        assert drawn.shape[:2] == (3, 2)
        assert not torch.equal(drawn, executor(X)[1])

    def test_so_may_a_namespace_a_data_class_and_nested_containers(self) -> None:
        held = SimpleNamespace(pair=[Scaled(torch.tensor([2.0, 3.0]))])
        assert inference(Module(lambda model, x: x * model.held.pair[0].by, held=held))(X).tolist() == [2, 6]

    def test_random_numbers_of_its_values_differ_from_call_to_call(self) -> None:
        executor = inference(Module(lambda model, x: x * 0 + torch.normal(model.mean, 1.0), mean=torch.zeros(2)))
        assert executor(X).tolist() != executor(X).tolist()

    def test_an_integer_buffer_is_on_the_device(self) -> None:
        """Unlike a plain attribute: its host value does not change."""

        def forward(model: Any, x: Tensor) -> Tensor:
            model.count += 1
            return x * model.count

        model: Any = Module(forward, {"count": torch.tensor([1])})
        executor = inference(model)
        assert [executor(X).tolist() for _ in range(2)] == [[2, 4]] * 2
        assert model.count.item() == 1


ADJACENCY = torch.tensor([[0.0, 2.0], [3.0, 0.0]])


class TestSparseConstants:
    """The device has no sparse tensors: Python reads them on the host, products take them as dense constants."""

    @pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
    @pytest.mark.parametrize(
        "product",
        [
            lambda a, x: torch.sparse.mm(a, x), lambda a, x: a @ x, lambda a, x: torch.mm(a, x),
            lambda a, x: torch.sparse.addmm(x, a, x) - x, lambda a, x: torch.sparse.mm(a.t(), x) * 0 + a.to_dense() @ x,
        ],
    )  # fmt: skip
    @pytest.mark.filterwarnings("ignore:Sparse CSR")
    def test_products(self, product: Any, layout: torch.layout) -> None:
        model: Any = Module(lambda model, x: product(model.a, x), a=ADJACENCY.to_sparse(layout=layout))
        assert inference(model)(X[:, None]).tolist() == (ADJACENCY @ X[:, None]).tolist()

    def test_what_they_say_of_themselves(self) -> None:
        def forward(model: Any, x: Tensor) -> tuple[Any, ...]:
            a = model.a.coalesce()
            rows, columns = a.indices()
            summed = torch.zeros(2).index_add(0, rows, a.values() * x[columns])
            return summed, a.sparse_dim(), a.is_sparse, tuple(a.shape)

        model: Any = Module(forward, a=ADJACENCY.to_sparse())
        summed, *rest = inference(model)(X)
        assert summed.tolist() == (ADJACENCY @ X).tolist()
        assert rest == [2, True, (2, 2)]

    def test_a_sparse_buffer_in_training(self) -> None:
        """The gradient of sum(a @ (x w)) with respect to the number w is sum(a @ x)."""

        def forward(model: Any, x: Tensor) -> Tensor:
            return poptorch.identity_loss(torch.sparse.mm(model.a, model.layer(x)), "sum")

        model: Any = Module(forward, {"a": ADJACENCY.to_sparse()}, layer=nn.Linear(1, 1, bias=False))
        before = model.layer.weight.item()
        executor = training(model, lr=1.0)
        executor(X[:, None])
        assert before - model.layer.weight.item() == pytest.approx((ADJACENCY @ X).sum().item())
        assert model.a.is_sparse
