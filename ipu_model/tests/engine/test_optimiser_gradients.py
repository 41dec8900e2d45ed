"""Gradients as a replayed graph hands them over: shared, strided, expanded or missing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from optimiser_support import random_gradients, random_weights, spec_of, updater_of

from ipu_model.optimiser import Hyper, OptimiserSpec

SPECS = [
    spec_of("SGD2", Hyper(lr=0.1, weight_decay=0.1)),
    spec_of("SGD2", Hyper(lr=0.1, momentum=0.9, weight_decay=0.1)),
    spec_of("SGD2", Hyper(lr=0.1, momentum=0.9, weight_decay=0.1), velocity_dtype=torch.float16),
    spec_of("SGD1", Hyper(lr=0.1, momentum=0.9, nesterov=True)),
    spec_of("ADAM", Hyper(lr=0.1, weight_decay=0.1)),
    spec_of("ADAMW", Hyper(lr=0.1, weight_decay=0.1), first_dtype=torch.float16),
    spec_of("LAMB", Hyper(lr=0.1, weight_decay=0.1)),
    spec_of("RMSPROP", Hyper(lr=0.1, momentum=0.9)),
]
every_family = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.family)


@every_family
def test_a_weight_without_gradient_is_left_alone_with_its_state(spec: OptimiserSpec) -> None:
    weights = random_weights(0)
    before = {name: w.clone() for name, w in weights.items()}
    updater = updater_of(spec, weights)
    state = {name: s.clone() for name, s in updater.state.items()}
    gradients = random_gradients(1, 1)[0]
    del gradients["bias"]
    updater.step(gradients, 1.0)
    assert torch.equal(weights["bias"], before["bias"])
    assert all(torch.equal(updater.state[n], s) for n, s in state.items() if n.endswith("___bias"))
    assert not torch.equal(weights["matrix"], before["matrix"])


@every_family
def test_one_tensor_may_be_the_gradient_of_several_weights(spec: OptimiserSpec) -> None:
    """As for two biases that are added to the same value; a view of it counts too."""
    start = torch.rand(1, 6)
    together = {"a": start.clone(), "b": start.clone(), "c": start[0, :3].clone()}
    alone = {name: w.clone() for name, w in together.items()}
    gradient = torch.rand(1, 6) + 0.5
    for _ in range(2):
        shared = gradient.clone()
        one = updater_of(spec, together)
        one.step({"a": shared, "b": shared, "c": shared[0, :3]}, 0.5)
        other = updater_of(spec, alone)
        other.step({"a": gradient.clone(), "b": gradient.clone(), "c": gradient[0, :3].clone()}, 0.5)
    for name, weight in together.items():
        torch.testing.assert_close(weight, alone[name])


@every_family
def test_a_weight_may_be_the_gradient_of_another(spec: OptimiserSpec) -> None:
    """All gradients are those from before the update, also when groups are updated one after the other."""
    a, b = torch.rand(4) + 1.0, torch.rand(4) + 1.0
    faster = replace(spec.default, lr=0.2)
    spec, groups = replace(spec, groups=(spec.default, faster)), {"a": 0, "b": 1}
    aliased, copied = {"a": a.clone(), "b": b.clone()}, {"a": a.clone(), "b": b.clone()}
    updater_of(spec, aliased, group_of=groups).step({"a": aliased["b"], "b": aliased["a"]}, 1.0)
    updater_of(spec, copied, group_of=groups).step({"a": b.clone(), "b": a.clone()}, 1.0)
    torch.testing.assert_close(aliased, copied)


@every_family
@pytest.mark.parametrize("layout", ["transposed", "expanded"])
def test_any_memory_layout_gives_the_same_update(spec: OptimiserSpec, layout: str) -> None:
    source = torch.Generator().manual_seed(0)
    start = torch.rand(4, 6, generator=source)
    gradient = torch.rand(6, 4, generator=source).t() if layout == "transposed" else torch.ones(1, 6).expand(4, 6)
    strided, dense = {"w": start.clone()}, {"w": start.clone()}
    updater_of(spec, strided).step({"w": gradient}, 0.5)
    updater_of(spec, dense).step({"w": gradient.contiguous().clone()}, 0.5)
    torch.testing.assert_close(strided["w"], dense["w"])


@every_family
def test_weights_that_are_channels_last_are_updated_in_place(spec: OptimiserSpec) -> None:
    source = torch.Generator().manual_seed(0)
    start, gradient = torch.rand(2, 3, 4, 5, generator=source), torch.rand(2, 3, 4, 5, generator=source)
    last, usual = {"w": start.to(memory_format=torch.channels_last)}, {"w": start.clone()}
    pointer = last["w"].data_ptr()
    updater_of(spec, last).step({"w": gradient.clone()}, 1.0)
    updater_of(spec, usual).step({"w": gradient.clone()}, 1.0)
    assert last["w"].data_ptr() == pointer
    torch.testing.assert_close(last["w"], usual["w"], rtol=1e-5, atol=1e-6)


def test_no_autograd_graph_is_recorded() -> None:
    weight = torch.ones(3, requires_grad=True)
    updater_of(spec_of("SGD2", Hyper(lr=0.1, momentum=0.9)), {"w": weight}).step({"w": torch.ones(3)}, 1.0)
    assert weight.is_leaf
    assert weight.grad_fn is None
    assert weight[0].item() == pytest.approx(0.9)
