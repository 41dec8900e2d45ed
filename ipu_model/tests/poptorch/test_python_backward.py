"""What Python has for the backward pass has no effect on the device (operators reference, points 1 and 2).

PopTorch traces forward in inference mode, and PopART differentiates what was traced. The expected weights are those of
plain PyTorch for the same forward without the function's backward or the hook.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
import torch.autograd.forward_ad as forward_mode
from executor_support import Module, inference, training, trains_alike
from torch import Tensor, nn
from torch.autograd import Function

import ipu_model
import poptorch
from ipu_model.custom_ops import register, unregister
from poptorch import Error

X = torch.tensor([[1.0, -2.0, 0.5], [0.3, 4.0, -1.0]])


def model_of(function: Callable[..., Tensor]) -> Any:
    """Return a model whose first layer gets its gradient through `function(model, hidden)`."""

    def forward(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        out = function(model, model.layer(x)) * model.scale
        return out, poptorch.identity_loss(out, "sum")

    torch.manual_seed(0)
    scale = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
    return Module(forward, layer=nn.Linear(3, 3), scale=scale)


def trains_as(function: Callable[..., Tensor], plain: Callable[..., Tensor], prepare: Any = lambda model: None) -> None:
    """Check that a model, `prepare`d, trains on the device as another does in plain PyTorch."""
    model = model_of(function)
    prepare(model)
    trains_alike(model, model_of(plain), X)


class StraightThrough(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.round(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class Reversed(StraightThrough):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return -gradients[0]


class Spike(StraightThrough):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (x > 0).to(x.dtype)


class Squared(StraightThrough):
    """Its backward is the derivative of its forward, with a `setup_context` of its own; so are those of the next."""

    @staticmethod
    def forward(x: Tensor, power: int = 2) -> Any:
        return x**power, x > 0, power

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.power = inputs[1]
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0] * ctx.power * ctx.saved_tensors[0] ** (ctx.power - 1), None


class Nested(StraightThrough):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * Squared.apply(x)[0]


class InPlace(StraightThrough):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 3


class OwnCheckpoint(Function):
    """As diffusion models have it: forward runs without gradients, and backward runs it again."""

    @staticmethod
    def forward(ctx: Any, run: Any, x: Tensor, *weights: Tensor) -> Any:
        ctx.run, ctx.inputs = run, [x, *weights]
        assert ctx.needs_input_grad == (False, True, True, True)
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        inputs = [tensor.detach().requires_grad_() for tensor in ctx.inputs[:1]] + ctx.inputs[1:]
        with torch.enable_grad():
            out = ctx.run(inputs[0])
        return None, *torch.autograd.grad(out, inputs, gradients)


class TestFunctions:
    """Also if `apply` was taken from the class before the trace, as many programs do."""

    APPLIES: ClassVar[dict[str, Any]] = {
        kind.__name__: kind.apply for kind in (StraightThrough, Reversed, Spike, Squared, Nested, InPlace)
    }

    @pytest.mark.parametrize(("name", "plain"), [
        ("StraightThrough", lambda m, h: torch.round(h)),  # its gradient is zero
        ("Reversed", lambda m, h: h),
        ("Spike", lambda m, h: (h > 0).to(h.dtype)),  # none at all
        ("Nested", lambda m, h: 2 * h**2),
    ])  # fmt: skip
    def test_the_gradient_is_that_of_the_ops_in_forward(
        self, name: str, plain: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        apply = self.APPLIES[name]
        trains_as(lambda m, h: apply(h) + 0 * apply(h), plain)
        assert caplog.text.count(f"The backward of {name}, a torch.autograd.Function, is not run on the device") == 1
        assert "poptorch.custom_op" in caplog.text

    @pytest.mark.parametrize("function", [
        lambda m, h: TestFunctions.APPLIES["Squared"](h, 3)[0],
        lambda m, h: Squared.apply(h)[0].mul_(2),
        pytest.param(
            lambda m, h: Squared.apply(h, power=3)[0],
            marks=pytest.mark.skipif(torch.__version__ < "2.14", reason="this PyTorch takes no keywords there"),
        ),
        torch.no_grad()(lambda m, h: TestFunctions.APPLIES["InPlace"](h * 1) + Squared.apply(h)[0]),
        lambda m, h: TestFunctions.APPLIES["InPlace"](h * 1) * h,
        lambda m, h: torch.cat(Squared.apply(h[:, :2], 2)[:1] + Squared.apply(h[:, 2:], 3)[:1], dim=1),
        lambda m, h: OwnCheckpoint.apply(lambda x: m.layer(x).tanh(), h, *m.layer.parameters()),
        lambda m, h: torch.utils.checkpoint.checkpoint(lambda x: Squared.apply(x, 2)[0], h, use_reentrant=False),
    ])  # fmt: skip
    def test_one_with_the_derivative_of_its_forward_trains_alike(self, function: Any) -> None:
        trains_as(function, function)

    def test_what_forward_detaches_gets_no_gradient_inside_and_outside_of_a_function(self) -> None:
        """So the idiom that needs no function at all works: the rounding is detached, and the gradient passes by it."""
        passing = lambda m, h: h + (torch.round(h) - h).detach()  # noqa: E731
        trains_as(passing, passing)

    def test_in_an_inference_model_nothing_is_said(self, caplog: pytest.LogCaptureFixture) -> None:
        model = model_of(lambda m, h: StraightThrough.apply(h))
        torch.testing.assert_close(inference(model)(X)[0], model(X)[0])
        assert "backward" not in caplog.text

    def test_predicting_other_settings_does_not_say_it_again(self, caplog: pytest.LogCaptureFixture) -> None:
        executor = training(model_of(lambda m, h: StraightThrough.apply(h)))
        executor(X)
        caplog.clear()
        ipu_model.what_if(executor, half_precision=True)
        assert caplog.text == ""

    def test_a_registered_op_brings_its_gradient_also_from_inside_a_function(self) -> None:
        class Proxy(Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                return poptorch.custom_op([x], "PassRound", "test.backward", 1, example_outputs=[x])[0]

        op = register("PassRound", "test.backward", 1, torch.round, lambda inputs, outputs, given, attributes: given)
        passing = lambda m, h: StraightThrough.apply(h)  # noqa: E731  # plain PyTorch runs its backward
        try:
            trains_as(lambda m, h: Proxy.apply(h), passing)
        finally:
            unregister(op)

    def test_the_class_is_as_before_and_its_forward_can_be_called_itself(self) -> None:
        trains_as(lambda m, h: Reversed.forward(None, h), lambda m, h: h)
        leaf = torch.ones(2, requires_grad=True)
        Reversed.apply(leaf).sum().backward()
        assert leaf.grad is not None
        assert leaf.grad.tolist() == [-1, -1]


def doubled(module: nn.Module, *gradients: Any) -> tuple[Tensor, ...]:
    return tuple(gradient * 2 for gradient in gradients[0])


def triple(gradient: Tensor) -> Tensor:
    return gradient * 3


def hooked(m: Any, h: Tensor) -> Tensor:
    h.register_hook(doubled).remove()
    h.register_hook(triple)
    torch.autograd.graph.register_multi_grad_hook([h, h * 2], triple)
    return h


HOOKS: dict[str, Any] = {
    "doubled on the gradient of a Linear": lambda m: m.layer.register_full_backward_hook(doubled),
    "doubled on the gradient of a Module": lambda m: m.register_full_backward_pre_hook(doubled),
    "triple on the gradient of 'layer.weight'": lambda m: m.layer.weight.register_hook(triple),
    "triple on the gradient of 'layer.bias'": lambda m: m.layer.bias.register_post_accumulate_grad_hook(triple),
    "triple on the gradient of a tensor": lambda m: setattr(m, "hooked", True),
}


@pytest.mark.parametrize("said", HOOKS)
def test_hooks_on_gradients_are_not_called_which_is_said_once(said: str, caplog: pytest.LogCaptureFixture) -> None:
    trains_as(lambda m, h: hooked(m, h) if hasattr(m, "hooked") else h, lambda m, h: h, HOOKS[said])
    assert caplog.text.count(f"The hook {said} is not called on the device") == 1


def gradient_of(m: Any, h: Tensor) -> Any:
    h = h.detach().requires_grad_()
    return torch.autograd.grad(m.layer(h).tanh().sum(), h)[0]


def forward_mode_of(m: Any, h: Tensor) -> Any:
    with forward_mode.dual_level():
        return forward_mode.unpack_dual(m.layer(forward_mode.make_dual(h, torch.ones_like(h)))).tangent


DERIVATIVES: dict[str, Any] = {
    "grad": gradient_of,
    "grad, where gradients are on": torch.enable_grad()(gradient_of),
    "backward of a tensor": lambda m, h: (m.layer(h).sum().backward(), h)[1],
    "backward": lambda m, h: (torch.autograd.backward(m.layer(h).sum()), h)[1],
    "forward mode": forward_mode_of,
    "func.grad": lambda m, h: torch.func.grad(lambda x: m.layer(x).sum())(h),
    "vmap of a hessian": lambda m, h: torch.func.vmap(torch.func.hessian(lambda x: m.layer(x).tanh().sum()))(h),
    "vjp": lambda m, h: torch.func.vjp(m.layer, h)[1](h)[0],
    "jacrev": lambda m, h: torch.func.jacrev(m.layer)(h[0]),
    "functional.jacobian": lambda m, h: torch.autograd.functional.jacobian(m.layer, h[0]),
}


class TestGradientsInForward:
    @pytest.mark.parametrize("name", DERIVATIVES)
    def test_they_are_refused_in_its_line_and_torch_is_as_before(self, name: str) -> None:
        for wrap in (training, inference):
            with pytest.raises(Error, match=r"does not require grad and does not have a grad_fn.*inference mode"):
                wrap(model_of(DERIVATIVES[name]))(X)
            assert torch.is_grad_enabled()
            assert torch.func.grad(lambda x: x**2)(torch.tensor(3.0)).item() == 6.0

    def test_what_takes_no_derivative_works(self) -> None:
        model = model_of(lambda m, h: torch.func.vmap(lambda x: x.softmax(0))(h))
        torch.testing.assert_close(inference(model)(X)[0], model(X)[0].detach())
        twice = model_of(lambda m, h: torch.func.functional_call(m.layer, dict(m.layer.named_parameters()), (h,)))
        torch.testing.assert_close(inference(copy.deepcopy(twice))(X)[0], twice(X)[0].detach())
