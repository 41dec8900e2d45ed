"""Canaries for PyTorch's private fused kernels, and their agreement with the plain update."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from optimiser_support import assert_close, random_gradients, random_weights, spec_of, updater_of

from ipu_model.compute.optimisers import fused
from ipu_model.optimiser import Hyper, OptimiserSpec


@pytest.mark.parametrize("name", ["_fused_sgd_", "_fused_adam_", "_fused_adamw_"])
def test_the_kernels_exist_with_the_arguments_that_we_pass(name: str) -> None:
    schema = str(getattr(torch.ops.aten, name).default._schema)
    common = {"self", "grads", "lr", "weight_decay", "maximize", "grad_scale"}
    own = {"momentum", "dampening", "nesterov", "is_first_step"} if name == "_fused_sgd_" else {"beta1", "beta2", "eps"}
    arguments = {argument.name for argument in getattr(torch.ops.aten, name).default._schema.arguments}
    assert common | own <= arguments, schema
    assert hasattr(torch, name)


def test_sgd_kernel_divides_the_gradient_and_dampens_from_the_first_step() -> None:
    """v = 0.5*0 + (1-0.25)*(6/2 + 0.1*1) = 2.325; w = 1 - 0.1*v."""
    w, v = torch.ones(20), torch.zeros(20)
    fused.sgd_([w], [torch.full((20,), 6.0)], [v], lr=0.1, momentum=0.5, dampening=0.25, weight_decay=0.1,
               nesterov=False, divisor=fused.grad_scale(0.5))  # fmt: skip
    torch.testing.assert_close(v, torch.full((20,), 2.325))
    torch.testing.assert_close(w, torch.full((20,), 1 - 0.2325))


@pytest.mark.parametrize("decoupled", [False, True])
def test_adam_kernel_reads_the_counter_of_each_weight(decoupled: bool) -> None:
    """At t=1 the direction is g/|g| = 1; at t=3 from empty moments (0.1/0.271)/sqrt(0.001/0.002997)."""
    weights, moments = [torch.zeros(8), torch.zeros(8)], [[torch.zeros(8), torch.zeros(8)] for _ in range(2)]
    steps = [torch.tensor(1.0), torch.tensor(3.0)]
    fused.adam_(weights, [torch.full((8,), 2.0), torch.full((8,), 2.0)], *moments, steps, lr=0.1,
                betas=(0.9, 0.999), eps=0.0, weight_decay=0.0, decoupled=decoupled, divisor=None)  # fmt: skip
    torch.testing.assert_close(weights[0], torch.full((8,), -0.1))
    torch.testing.assert_close(weights[1], torch.full((8,), -0.1 * (0.1 / 0.271) / (0.001 / 0.002997001) ** 0.5))


@pytest.mark.parametrize(
    ("tensor", "fits"),
    [
        (torch.zeros(3, 4), True),
        (torch.zeros(4, 3).t(), False),
        (torch.zeros(3, 4, dtype=torch.float64), False),
        (torch.zeros(3, 4, dtype=torch.float16), False),
    ],
)
def test_kernels_are_used_only_where_every_tensor_has_one_layout_and_is_float32(
    tensor: torch.Tensor, fits: bool
) -> None:
    assert fused.fits([torch.zeros(3, 4)], [tensor]) is fits


SPECS = [
    spec_of("SGD2", Hyper(lr=0.1, momentum=0.9, dampening=0.2, weight_decay=0.1), loss_scaling=4.0),
    spec_of("SGD2", Hyper(lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True)),
    spec_of("ADAM", Hyper(lr=0.1, weight_decay=0.1, eps=1e-3), loss_scaling=4.0),
    spec_of("ADAMW", Hyper(lr=0.1, weight_decay=0.1, eps=1e-3)),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.family)
@pytest.mark.parametrize("scale", [1.0, 1.0 / 3.0])
def test_fused_and_plain_updates_agree(spec: OptimiserSpec, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for allowed in (True, False):
        calls: list[str] = []
        for kernel in ("sgd_", "adam_"):
            monkeypatch.setattr(fused, kernel, _counted(getattr(fused, kernel), calls))
        if not allowed:
            monkeypatch.setattr(fused, "fits", lambda *tensors: False)
        weights = random_weights(0)
        updater = updater_of(spec, weights)
        for step in random_gradients(1, 3):
            updater.step(step, scale)
        assert bool(calls) is allowed
        results.append({**weights, **updater.state})
    assert_close(*results, tolerance=1e-6)


def _counted(kernel: Any, calls: list[str]) -> Any:
    def call(*args: Any, **kwargs: Any) -> None:
        calls.append(kernel.__name__)
        kernel(*args, **kwargs)

    return call
