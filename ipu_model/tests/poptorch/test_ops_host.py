"""Where code runs: `isRunningOnIpu` (execution reference, 15.1) and `poptorch.CPU` (10.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from function_models import FunctionModel, in_training, on_device, quiet_options
from torch import Tensor, nn

import poptorch
from ipu_model.capture.describe import step_of
from ipu_model.predict.calibration import calibrated
from ipu_model.predict.costs import costs_of
from ipu_model.predict.device import Device

GC200 = Device()
X = torch.arange(24.0).reshape(6, 4)


def answers(seen: list[bool]) -> Any:
    """Return a forward that notes where it believes to run."""

    def forward(model: Any, x: Tensor) -> Tensor:
        seen.append(poptorch.isRunningOnIpu())
        return poptorch.identity_loss(model.linear(x), "sum")

    return forward


@pytest.mark.parametrize("wrap", [on_device, in_training])
def test_a_forward_runs_on_the_ipu_while_it_is_traced(wrap: Any) -> None:
    seen: list[bool] = []
    executor = wrap(answers(seen))
    assert not poptorch.isRunningOnIpu()
    executor(X)
    executor(X)
    assert seen == [True]
    FunctionModel(answers(seen))(X)
    assert seen == [True, False]
    assert not poptorch.isRunningOnIpu()


class WithHostLayer(nn.Module):
    """A model that calls one of its own methods, with a layer of its own, on the host."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.on_host = nn.Linear(4, 4), nn.Linear(4, 4)
        self.seen: list[Tensor] = []
        self.op = poptorch.CPU(self.compute, "MyOp")

    def compute(self, x: Tensor) -> Tensor:
        self.seen.append(x)
        assert not poptorch.isRunningOnIpu()
        # Weights of the host, also while tracing: NumPy takes no others.
        return torch.from_numpy(np.sort(self.on_host(x).detach().numpy(), axis=1))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.op(self.first(x)) + 1
        return y


def host_op(function: Callable[..., Any], name: str = "op") -> poptorch.PoplarExecutor:
    op = poptorch.CPU(function, name)
    return on_device(lambda m, *inputs: op(*inputs))


class TestCalls:
    def test_a_method_of_the_model_gets_the_present_values_in_every_micro_batch(self) -> None:
        model = WithHostLayer().eval()
        executor = poptorch.inferenceModel(model, quiet_options().deviceIterations(3))
        executor.compile(X)
        assert [t.tolist() for t in model.seen] == [[[0.0] * 4] * 2]  # once while tracing, on zeros
        model.seen.clear()
        found = executor(X)
        torch.testing.assert_close(torch.cat(model.seen), model.first(X))
        torch.testing.assert_close(found, model(X))

    def test_one_result_comes_as_a_tensor_and_several_as_a_list(self) -> None:
        def parts(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return x + y, x.argmax(1)

        op = poptorch.CPU(parts, "parts")

        def forward(model: Any, x: Tensor) -> Any:
            results = op(x, 2 * x)
            assert isinstance(results, list)
            return results

        found = on_device(forward)(X)
        assert torch.equal(found[0], 3 * X)
        assert found[1].tolist() == [3] * 6

    def test_one_op_may_be_called_twice_and_several_alternate(self) -> None:
        double, add = poptorch.CPU(lambda x: 2 * x, "double"), poptorch.CPU(lambda x: x + 1, "add")
        assert torch.equal(on_device(lambda m, x: double(add(double(add(x)))))(X), 2 * (2 * (X + 1) + 1))

    def test_of_two_ops_with_one_id_the_first_is_called(self) -> None:
        first, second = poptorch.CPU(lambda x: 2 * x, "same"), poptorch.CPU(lambda x: x + 1, "same")
        assert torch.equal(on_device(lambda m, x: second(first(x)))(X), 4 * X)
        assert torch.equal(on_device(lambda m, x: second(x))(X), X + 1)  # another compilation

    def test_what_it_changes_or_keeps_is_its_own(self) -> None:
        kept: list[Tensor] = []

        def careless(x: Tensor) -> Tensor:
            kept.append(x.add_(1))
            return x

        op = poptorch.CPU(careless, "careless")
        executor = on_device(lambda m, x: (op(x), x + 0, op(x)))
        for _ in range(2):
            first, untouched, again = executor(X)
            assert torch.equal(untouched, X)
            assert torch.equal(first, X + 1)
            assert torch.equal(again, X + 1)
            for tensor in kept:
                tensor.zero_()
            assert torch.equal(first, X + 1)

    def test_it_is_called_in_every_run_even_without_operands(self) -> None:
        count = iter(range(100))
        op = poptorch.CPU(lambda: torch.full((1,), float(next(count))), "source")
        executor = on_device(lambda m, x: (op(), x), quiet_options().deviceIterations(2))
        executor.compile(X)
        assert next(count) == 1  # the zeroth call was the trace's
        assert executor(X)[0].tolist() == [2.0, 3.0]
        assert executor(X)[0].tolist() == [4.0, 5.0]

    def test_floating_point_buffers_are_float32(self) -> None:
        seen: list[torch.dtype] = []

        def look(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
            seen.extend((x.dtype, n.dtype))
            return x.half(), n

        floats, ints = host_op(look)(X.half(), torch.ones(6, dtype=torch.int32))
        assert set(seen) == {torch.float32, torch.int32}
        assert (floats.dtype, ints.dtype) == (torch.float32, torch.int32)

    def test_keywords_are_ignored_and_the_cpu_calls_it_directly(self) -> None:
        op = poptorch.CPU(lambda x, by=2: by * x, "op")
        assert torch.equal(op(X, by=5), 2 * X)
        assert torch.equal(on_device(lambda m, x: op(x, by=5))(X), 2 * X)

    def test_poptorchs_functions_act_inside_as_on_the_cpu(self) -> None:
        def inside(x: Tensor) -> Tensor:
            with poptorch.Block("host"):
                return poptorch.nop(torch.zeros(4) + x)

        assert torch.equal(host_op(inside)(X), X)

    def test_a_layer_runs_with_its_own_weights_also_when_they_change(self) -> None:
        layer = nn.Linear(4, 4)
        executor = host_op(layer)
        torch.testing.assert_close(executor(X), layer(X))
        assert not any(parameter.requires_grad for parameter in layer.parameters())
        with torch.no_grad():
            layer.weight.zero_()
        torch.testing.assert_close(executor(X), layer(X))


def test_the_model_counts_a_wait_for_the_host_and_the_bytes_both_ways() -> None:
    """Waits and rates are those of section `stream` of calibration.toml; 96 bytes each way add nothing to speak of."""
    executor = host_op(lambda x: x)
    executor.compile(X)
    assert executor._compiled is not None
    found = costs_of(step_of(executor._compiled.graph))
    assert not found.fallbacks
    (op,) = found.ops
    assert op.family == "host call"
    wait = calibrated().stream.run_wait_seconds
    assert GC200.chip.seconds(op.work.cycles.exchange) == pytest.approx(wait, rel=1e-3)
    assert GC200.chip.seconds(op.work.cycles.exchange) > wait
