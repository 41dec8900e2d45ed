"""Half precision as programs see it: who decides, what stays float32 (executor reference, section 12)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from executor_support import inference, quiet, raw, training
from torch import Tensor, nn

import poptorch

HALF, FLOAT = torch.float16, torch.float32


class Calls(nn.Module):
    """Returns `function(module, x)`."""

    def __init__(self, function: Callable[..., Any], module: nn.Module) -> None:
        super().__init__()
        self.module, self.function = module, function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self.module, *inputs)


# Layer, shape of its input.
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 3), (2, 4)),
    "bilinear": (lambda: Twice(nn.Bilinear(4, 4, 3)), (2, 4)),
    "convolution, 1 dimension": (lambda: nn.Conv1d(4, 2, 3), (2, 4, 6)),
    "convolution, 2 dimensions": (lambda: nn.Conv2d(4, 2, 3), (2, 4, 6, 6)),
    "convolution, 3 dimensions": (lambda: nn.Conv3d(4, 2, 2), (1, 4, 3, 3, 3)),
    "transposed convolution": (lambda: nn.ConvTranspose2d(4, 2, 3), (2, 4, 3, 3)),
    "batch norm": (lambda: nn.BatchNorm2d(4), (2, 4, 3, 3)),
    "layer norm": (lambda: nn.LayerNorm(4), (2, 4)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (2, 4, 3)),
    "instance norm": (lambda: nn.InstanceNorm1d(4, affine=True), (2, 4, 3)),
    "attention": (lambda: Attends(), (2, 3, 4)),
}


class Twice(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, x)


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, x, x)[0]


def sample(*shape: int) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(shape)


class TestTheActivationDecides:
    @pytest.mark.parametrize("mode", ["train", "eval"])
    @pytest.mark.parametrize("name", LAYERS)
    def test_half_input_and_float_weights_give_half(self, name: str, mode: str) -> None:
        make, shape = LAYERS[name]
        layer, x = make().train(mode == "train"), sample(*shape)
        out = inference(layer)(x.half())
        assert out.dtype is HALF
        torch.testing.assert_close(out.float(), make_like(layer)(x), rtol=2e-2, atol=2e-2)

    @pytest.mark.parametrize("name", LAYERS)
    def test_float_input_and_half_weights_give_float(self, name: str) -> None:
        make, shape = LAYERS[name]
        layer, x = make().half(), sample(*shape)
        out = inference(layer)(x)
        assert out.dtype is FLOAT
        torch.testing.assert_close(out, make_like(layer)(x), rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("name", LAYERS)
    def test_both_half(self, name: str) -> None:
        make, shape = LAYERS[name]
        assert inference(make().half())(sample(*shape).half()).dtype is HALF

    @pytest.mark.parametrize(
        "product",
        [torch.matmul, torch.mm, lambda a, b: a @ b, lambda a, b: a.mm(b)],
        ids=["matmul", "mm", "@", "method"],
    )
    def test_products_follow_their_first_argument(self, product: Any) -> None:
        model = Calls(lambda m, a, b: product(a, b), nn.Identity())
        a, b = sample(2, 3), sample(3, 2)
        assert inference(model)(a.half(), b).dtype is HALF
        assert inference(model)(a, b.half()).dtype is FLOAT

    def test_element_wise_mixes_are_promoted_to_float(self) -> None:
        for function in (
            lambda m, x: x + m.weight,
            lambda m, x: m.weight * x,
            lambda m, x: torch.where(x > 0, x, m.weight),
        ):
            layer = nn.Linear(4, 1)
            assert inference(Calls(function, layer))(sample(2, 4).half()).dtype is FLOAT


def make_like(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return the same layer in float32, by plain PyTorch, without changing its statistics."""
    import copy

    twin = copy.deepcopy(layer).float()
    return lambda x: twin(x).detach()


class TestTraining:
    def test_float_parameters_under_half_activations_are_master_weights(self) -> None:
        """An update far below half precision's resolution at 1 (2**-11 there and back) still accumulates."""
        model = Calls(lambda m, x: poptorch.identity_loss(m(x), "sum"), nn.Linear(1, 1, bias=False))
        model.module.weight.data.fill_(1)
        executor = training(model, lr=2.0**-14)
        for _ in range(4):
            loss = executor(torch.ones(1, 1, dtype=HALF))
        assert loss.dtype is HALF
        assert model.module.weight.dtype is FLOAT
        assert model.module.weight.item() == 1 - 4 * 2.0**-14

    def test_half_parameters_lose_such_updates(self) -> None:
        model = Calls(lambda m, x: poptorch.identity_loss(m(x), "sum"), nn.Linear(1, 1, bias=False).half())
        model.module.weight.data.fill_(1)
        executor = training(model, lr=2.0**-14)
        for _ in range(4):
            executor(torch.ones(1, 1, dtype=HALF))
        assert model.module.weight.dtype is HALF
        assert model.module.weight.item() == 1

    def test_a_half_model_returns_half_outputs_and_losses(self) -> None:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.body = nn.Sequential(
                    nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)
                )

            def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
                out = self.body(x)
                return out, F.cross_entropy(out, y)

        model = Net().half()
        executor = training(model, momentum=0.9)
        out, loss = executor(sample(2, 1, 4, 4).half(), torch.tensor([0, 2]))
        assert (out.dtype, loss.dtype) == (HALF, HALF)
        assert {parameter.dtype for parameter in model.parameters()} == {HALF}
        assert model.body[1].running_mean.dtype is HALF
        assert all(torch.isfinite(parameter).all() for parameter in model.parameters())

    def test_running_statistics_keep_the_type_of_their_buffers(self) -> None:
        model = Calls(lambda m, x: poptorch.identity_loss(m(x), "sum"), nn.BatchNorm1d(2))
        x = sample(8, 2)
        executor = training(model)
        executor(x.half())
        assert model.module.running_mean.dtype is FLOAT
        torch.testing.assert_close(model.module.running_mean, 0.1 * x.half().float().mean(0), rtol=1e-3, atol=1e-4)

    def test_weights_go_back_and_forth_unchanged(self) -> None:
        layer = nn.Linear(3, 3).half()
        values = layer.weight.detach().clone()
        executor = inference(layer)
        executor(sample(2, 3).half())
        layer.weight.data.zero_()
        executor.copyWeightsToHost()
        assert torch.equal(raw(layer, "weight"), values)


class TestCasts:
    @pytest.mark.parametrize(
        ("cast", "dtype"),
        [(lambda x: x.half(), HALF), (lambda x: x.to(HALF), HALF), (lambda x: x.type(HALF), HALF),
         (lambda x: x.half().float(), FLOAT), (lambda x: x.half().to(torch.float32), FLOAT)],
    )  # fmt: skip
    def test_casts_in_forward_are_honoured(self, cast: Any, dtype: torch.dtype) -> None:
        x = torch.tensor([1 / 3])
        out = inference(Calls(lambda m, x: cast(x), nn.Identity()))(x)
        assert out.dtype is dtype
        assert out.item() == x.half().item()

    def test_eight_bit_images_cast_in_the_model(self) -> None:
        def normalised(layer: nn.Module, image: Tensor) -> Tensor:
            return layer((image.half() / 255 - 0.5) / 0.25)

        layer = nn.Conv2d(3, 2, 3)
        image = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
        out = inference(Calls(normalised, layer))(image)
        assert out.dtype is HALF
        expected = layer((image.float() / 255 - 0.5) / 0.25)
        torch.testing.assert_close(out.float(), expected.detach(), rtol=2e-2, atol=2e-2)

    def test_values_beyond_the_range_clip_as_on_the_device(self) -> None:
        model = Calls(lambda m, x: (x * 2, x.sum()), nn.Identity())
        doubled, total = inference(model)(torch.tensor([40000.0, 30000.0], dtype=HALF))
        assert doubled.tolist() == [65504.0, 60000.0]
        assert total.item() == 65504.0

    def test_they_are_infinite_as_on_a_gpu_where_the_environment_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("IPU_MODEL_HALF_OVERFLOW", "infinity")
        model = Calls(lambda m, x: (x * 2, x.sum(), x / 0), nn.Identity())
        results = inference(model)(torch.tensor([40000.0, 30000.0], dtype=HALF))
        assert [result.tolist() for result in results] == [[math.inf, 60000.0], math.inf, [math.inf, math.inf]]

    def test_an_unknown_value_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("IPU_MODEL_HALF_OVERFLOW", "nan")
        with pytest.raises(
            poptorch.Error, match=r"IPU_MODEL_HALF_OVERFLOW must be 'clip' .* or 'infinity' .* not 'nan'"
        ):
            inference(Calls(lambda m, x: x * 2, nn.Identity()))(torch.ones(1, dtype=HALF))

    def test_exceptions_can_be_asked_for(self) -> None:
        options = quiet()
        options.Precision.enableFloatingPointExceptions(True)
        executor = inference(Calls(lambda m, x: 1 / x, nn.Identity()), options)
        assert executor(torch.ones(2)).tolist() == [1, 1]
        with pytest.raises(poptorch.Error, match="Floating point exception"):
            executor(torch.zeros(2))
        assert executor(torch.ones(2)).tolist() == [1, 1]

    def test_a_half_executor_of_a_float_module(self) -> None:
        """`executor.half()` is forwarded to the module, before compilation."""
        model = nn.Sequential(nn.Linear(2, 2))
        executor = inference(model)
        executor.half()
        assert executor(sample(2, 2).half()).dtype is HALF
        assert model[0].weight.dtype is HALF
