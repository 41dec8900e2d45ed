"""Mixed precision: which element types results and gradients have (executor reference, section 12)."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from half_oracle import on_grid
from half_support import half, infer
from torch import Tensor, nn
from tracing_support import ops_of, traced

from ipu_model.batching import Batching, Returns
from ipu_model.compute.session import Session
from ipu_model.errors import Error
from ipu_model.graph import Graph

HALF, FLOAT = torch.float16, torch.float32
aten = torch.ops.aten


class SelfAttention(nn.MultiheadAttention):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]  # one tensor for all three
        return super().forward(x, x, x)[0]


class SelfBilinear(nn.Bilinear):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]  # one tensor for both
        return super().forward(x, x)


class FirstState(nn.LSTMCell):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]  # starts from zeros
        return super().forward(x)[0]


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(6, 4), (3, 6)),
    "bilinear": (lambda: SelfBilinear(6, 6, 3), (3, 6)),
    "conv1d": (lambda: nn.Conv1d(2, 3, 3), (2, 2, 8)),
    "conv2d": (lambda: nn.Conv2d(2, 4, 3, groups=2), (2, 2, 8, 8)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2), (2, 2, 4, 4, 4)),
    "transposed conv": (lambda: nn.ConvTranspose2d(2, 3, 3), (2, 2, 8, 8)),
    "batch norm": (lambda: nn.BatchNorm2d(2), (2, 2, 8, 8)),
    "batch norm, evaluation": (lambda: nn.BatchNorm2d(2).eval(), (2, 2, 8, 8)),
    "instance norm": (lambda: nn.InstanceNorm2d(2, affine=True, track_running_stats=True), (2, 2, 8, 8)),
    "layer norm": (lambda: nn.LayerNorm(6), (3, 6)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (3, 4, 5, 5)),
    "rms norm": (lambda: nn.RMSNorm(6), (3, 6)),
    "attention": (lambda: SelfAttention(6, 2), (3, 2, 6)),
    "transformer layer": (lambda: nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0), (3, 2, 6)),
    "lstm cell": (lambda: FirstState(6, 5), (3, 6)),
}


class WithLoss(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.layer(x)
        return y, F.mse_loss(y, torch.ones_like(y))


class KeepGradients:
    def __init__(self) -> None:
        self.gradients: dict[str, Tensor] = {}

    def step(self, gradients: Any, scale: float) -> None:
        self.gradients = dict(gradients)


def types_of_gradients(graph: Graph) -> dict[str, torch.dtype]:
    nodes = {node.name: node for node in graph.ops.nodes}
    return {name: nodes[node].meta["spec"].dtype for name, node in graph.gradients.items()}


WITH_BUFFERS = ("batch norm", "batch norm, evaluation", "instance norm")
COMBINATIONS = [
    pytest.param(name, *types, id=f"{name}: " + " ".join(str(t).removeprefix("torch.") for t in types))
    for name in LAYERS
    for types in itertools.product((HALF, FLOAT), repeat=3)
    if types[1] is types[2] or name in WITH_BUFFERS
]


@pytest.mark.parametrize(("name", "activation", "weights", "statistics"), COMBINATIONS)
def test_results_follow_the_activation_and_gradients_the_weight(name, activation, weights, statistics) -> None:
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    layer = make().to(weights)
    for buffer in layer.buffers():
        if buffer.is_floating_point():
            buffer.data = buffer.data.to(statistics)
    model, x = WithLoss(layer), torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(activation)
    graph = traced(model, x)
    session = Session(graph, Batching(), Returns())
    session.upload(dict(model.state_dict()))
    session.update = keeper = KeepGradients()
    output, loss = session.run([x])

    assert output.dtype is loss.dtype is activation
    assert types_of_gradients(graph) == {n: weights for n, _ in model.named_parameters()}
    exact = copy.deepcopy(model).double()
    expected, expected_loss = exact(x.double())
    expected_loss.backward()
    assert_near(output, expected)
    for parameter_name, parameter in exact.named_parameters():
        assert_near(keeper.gradients[parameter_name], parameter.grad)
    for buffer_name, buffer in exact.named_buffers():
        if buffer.is_floating_point():
            assert next(v.spec.dtype for v in graph.variables if v.name == buffer_name) is statistics
            assert_near(session.download()[buffer_name], buffer)


def assert_near(actual: Tensor, expected: Tensor | None) -> None:
    """Within some roundings of the float64 result, relative to its largest element (or to 0.01)."""
    assert expected is not None
    bound = 2.0**-7 * max(float(expected.detach().abs().max()), 0.01)
    assert float((actual.double() - expected.detach()).abs().max()) <= bound


def test_master_weights_get_float32_gradients_through_the_cast() -> None:
    """The weight is rounded for the product; its gradient is a float16 result widened to float32."""
    model = WithLoss(nn.Linear(3, 2, bias=False))
    graph = traced(model, torch.ones(4, 3, dtype=HALF))
    casts = [n for n in ops_of(graph) if n.target is aten._to_copy.default]
    assert [c.meta["spec"].dtype for c in casts] == [HALF, FLOAT]
    session = Session(graph, Batching(), Returns())
    weight = torch.full((2, 3), 1 / 3)
    session.upload({"layer.weight": weight})
    session.update = keeper = KeepGradients()
    (output, _) = session.run([torch.ones(4, 3, dtype=HALF)])
    assert torch.equal(session.weights["layer.weight"], weight), "the master weight keeps its 32 bits"
    assert output[0, 0].item() == float(torch.tensor(3 * float(weight.half()[0, 0])).half())
    assert on_grid(keeper.gradients["layer.weight"])


PAIRS = [
    (torch.matmul, half(1.0, 2.0).view(1, 2), torch.full((2, 1), 1 / 3)),
    (torch.mm, half(1.0).view(1, 1), torch.ones(1, 1)),
    (lambda a, b: a @ b, half(1.0, 2.0).view(1, 2), torch.ones(2, 1)),
    (torch.bmm, half(1.0).view(1, 1, 1), torch.ones(1, 1, 1)),
    (lambda a, b: torch.addmm(b, a, b), half(1.0).view(1, 1), torch.ones(1, 1)),
    (torch.mv, half(1.0).view(1, 1), torch.ones(1)),
    (lambda a, b: torch.einsum("ij,jk->ik", a, b), half(1.0, 2.0).view(1, 2), torch.ones(2, 1)),
    (torch.dot, half(1.0), torch.ones(1)),
    (lambda a, b: F.linear(weight=b, input=a), half(1.0).view(1, 1), torch.ones(1, 1)),
    (lambda a, b: F.scaled_dot_product_attention(a, b, b), half(1.0).view(1, 1, 1), torch.ones(1, 1, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("product", "a", "b"), PAIRS)
def test_products_take_the_type_of_the_activation(product, a: Tensor, b: Tensor) -> None:
    for x, y in ((a, b), (a.float(), b.half())):
        (result,) = infer(product, x, y)
        assert result.dtype is x.dtype
        assert torch.equal(result, product(x, y.to(x.dtype)))


def test_a_product_of_mixed_types_that_no_rule_covers_is_refused() -> None:
    def behind(x: Tensor) -> Tensor:
        return aten.mm.default(x, torch.ones(2, 2))

    with pytest.raises(Error, match=r"aten\.mm.*float16 and float32 operands.*weight\.to\(input\.dtype\)"):
        infer(behind, half(1.0, 2.0, 3.0, 4.0).view(2, 2))


@pytest.mark.parametrize(("function", "expected"), [
    (lambda x: x.float(), FLOAT), (lambda x: x.half(), HALF), (lambda x: x.to(FLOAT), FLOAT),
    (lambda x: x.to(torch.zeros((), dtype=FLOAT)), FLOAT),
    (lambda x: x.type_as(torch.zeros(1, dtype=FLOAT)), FLOAT),
    (lambda x: x.type(torch.float32), FLOAT), (lambda x: x.float().half(), HALF),
    (lambda x: x.double(), FLOAT),
    (lambda x: x + torch.tensor([1.0], dtype=HALF), HALF), (lambda x: x + torch.tensor([1.0]), FLOAT),
    (lambda x: x + torch.tensor(1.0), HALF), (lambda x: x + 1.0, HALF), (lambda x: x + x.float(), FLOAT),
    (lambda x: x.sum(dtype=FLOAT), FLOAT), (lambda x: x.softmax(0, dtype=FLOAT), FLOAT),
    (lambda x: x.mean(), HALF),
    (lambda x: torch.cat([x, x.float()]), FLOAT), (lambda x: torch.zeros(2, dtype=HALF) + x[0], HALF),
    (lambda x: F.mse_loss(x, torch.tensor([1.0, 2.0])), FLOAT), (lambda x: F.l1_loss(x, x * 2), HALF),
])  # fmt: skip
def test_casts_and_promotion_in_forward_are_pytorchs(
    function: Callable[[Tensor], Tensor], expected: torch.dtype
) -> None:
    x = half(1 / 3, 1 / 7)
    (result,) = infer(function, x)
    native = function(x)
    assert result.dtype is expected
    assert native.dtype in (expected, torch.float64)
    torch.testing.assert_close(result.double(), native.double(), rtol=2.0**-11 if expected is HALF else 1e-6, atol=0)


def test_images_of_8_bits_are_normalised_on_the_device() -> None:
    """A common pattern: bytes cross the link, the cast and the normalisation happen in forward."""

    def normalise(images: Tensor) -> Tensor:
        return (images.half() / 255 - 0.5) / 0.25

    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    (result,) = infer(normalise, images)
    expected = images.float().div(255).half().float().sub(0.5).half().float().div(0.25).half()
    assert result.dtype is HALF
    assert torch.equal(result, expected)


def test_a_half_model_of_float_input_computes_in_float() -> None:
    model, x = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)).half(), torch.randn(2, 4)
    (result,) = infer(model, x)
    assert result.dtype is FLOAT
    torch.testing.assert_close(result, copy.deepcopy(model).float()(x))


def test_a_recurrent_layer_of_another_type_than_its_input_is_refused_by_torch() -> None:
    with pytest.raises(ValueError, match="RNN input dtype"):
        infer(nn.LSTM(3, 4), half(*range(6)).view(2, 1, 3))


class UnderAutocast(nn.Module):
    def __init__(self, enabled: bool = True) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.enabled = enabled

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=self.enabled):
            return self.layer(x)


def test_autocast_in_forward_is_refused() -> None:
    with pytest.raises(Error, match=r"torch\.autocast is not supported.*module 'layer'.*model\.half\(\)"):
        infer(UnderAutocast(), torch.ones(2, 4))


def test_autocast_around_the_call_that_compiles_is_refused() -> None:
    with torch.autocast("cpu"), pytest.raises(Error, match=r"torch\.autocast is not supported"):
        infer(nn.Linear(4, 3), torch.ones(2, 4))


def test_autocast_that_is_switched_off_changes_nothing() -> None:
    model, x = UnderAutocast(enabled=False), torch.ones(2, 4)
    (result,) = infer(model, x)
    assert torch.equal(result, model(x))
