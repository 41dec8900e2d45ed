"""Short ways to make an updater and to run it next to a PyTorch optimiser."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ipu_model.capture.graph import dtype_of
from ipu_model.compute.rounding import Rounding
from ipu_model.compute.updater import Updater
from ipu_model.optimiser import Hyper, OptimiserSpec

Tensors = Mapping[str, Tensor]
SHAPES: Mapping[str, tuple[int, ...]] = {"matrix": (5, 3), "bias": (7,), "scalar": ()}


def spec_of(family: str, *groups: Hyper, **settings: Any) -> OptimiserSpec:
    """Return a spec whose default numbers are those of the first group; element types are torch's."""
    settings = {name: dtype_of(v) if isinstance(v, torch.dtype) else v for name, v in settings.items()}
    return OptimiserSpec(family, groups[0], groups, **settings)


def updater_of(
    spec: OptimiserSpec,
    weights: Tensors,
    *,
    dtype: torch.dtype = torch.float32,
    group_of: Mapping[str, int | None] | None = None,
    generator: torch.Generator | None = None,
) -> Updater:
    """Return an updater of `weights` (all of one dtype; all in group 0 unless told otherwise)."""
    groups = dict.fromkeys(weights, 0) if group_of is None else group_of
    return Updater(spec, weights, dict.fromkeys(weights, dtype), groups, Rounding(generator))


def moved(spec: OptimiserSpec, start: Tensor | float, *gradients: Tensor | float, **settings: Any) -> Tensor:
    """Return one weight after one step for each gradient (a number, or of the weight's shape)."""
    weight = torch.as_tensor(start).clone()
    updater = updater_of(spec, {"w": weight}, **settings)
    for gradient in gradients:
        updater.step({"w": torch.as_tensor(gradient).expand(weight.shape).clone()}, 1.0)
    return weight


def random_weights(seed: int) -> dict[str, Tensor]:
    source = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=source) for name, shape in SHAPES.items()}


def random_gradients(steps: int) -> list[dict[str, Tensor]]:
    return [random_weights(1000 + step) for step in range(1, steps + 1)]


def run(spec: OptimiserSpec, gradients: Sequence[Tensors], *, scale: float, factor: float) -> dict[str, Tensor]:
    """Return the weights after all `gradients`, each multiplied by `factor`, with `scale` left to apply."""
    weights = random_weights(0)
    updater = updater_of(spec, weights)
    for step in gradients:
        updater.step({name: gradient * factor for name, gradient in step.items()}, scale)
    return weights


def run_torch(make: Callable[[list[Tensor]], torch.optim.Optimizer], gradients: Sequence[Tensors]) -> dict[str, Tensor]:
    """Return what a PyTorch optimiser makes of the same weights and gradients, in float64."""
    weights = {name: w.double().requires_grad_() for name, w in random_weights(0).items()}
    optimiser = make(list(weights.values()))
    for step in gradients:
        for name, weight in weights.items():
            weight.grad = step[name].double()
        optimiser.step()
    return {name: weight.detach() for name, weight in weights.items()}


def assert_close(actual: Tensors, expected: Tensors, tolerance: float = 2e-5) -> None:
    """Compare float32 results with float64 ones."""
    assert actual.keys() == expected.keys()
    for name, value in actual.items():
        torch.testing.assert_close(value.double(), expected[name].double(), rtol=tolerance, atol=tolerance, msg=name)
