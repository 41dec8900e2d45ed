"""Models made from a function, tiny ones whose weights can be followed by hand, and how to wrap them."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn

import poptorch


class Module(nn.Module):
    """`forward(*args)` returns `function(self, *args)`; members and buffers are given by name."""

    def __init__(self, function: Callable[..., Any], buffers: dict[str, Tensor] | None = None, **members: Any) -> None:
        super().__init__()
        self.function = function
        for name, value in members.items():
            setattr(self, name, value)
        for name, tensor in (buffers or {}).items():
            self.register_buffer(name, tensor)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def with_loss(function: Callable[..., Any], reduction: str = "sum", **members: Any) -> Any:
    """Return a module that gives what `function(module, *args)` returns, and its sum or mean as the loss."""

    def forward(model: Any, *args: Any) -> tuple[Tensor, Tensor]:
        out = function(model, *args)
        return out, poptorch.identity_loss(out, reduction)

    return Module(forward, **members)


class Scale(nn.Module):
    """`forward(x)` returns `weight * x` and its mean as the loss: the gradient of `weight` is mean(x)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out = self.weight * x
        return out, poptorch.identity_loss(out, "mean")


class Net(nn.Module):
    """Two named layers: `forward(x)` is inference, `forward(x, y)` returns `(output, loss)`."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.second = nn.Linear(4, 2)
        self.loss = nn.MSELoss()

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        out = self.second(torch.tanh(self.first(x)))
        return out if y is None else (out, self.loss(out, y))


X = torch.arange(12.0).reshape(4, 3) / 10
Y = torch.ones(4, 2)
ONES = torch.ones(2)

# A power of two keeps the arithmetic exact: the gradient of `Scale` on ones is 1, and each run takes RATE off.
RATE = 0.125


def quiet(**settings: Any) -> poptorch.Options:
    """Return options without a progress bar; `settings` are setters of any part of them, a tuple is all arguments."""
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(settings.pop("accumulation", 1))
    parts = (options, options.Training, options.Precision, options.Distributed)
    for name, value in settings.items():
        setters = [getattr(part, name) for part in parts if hasattr(type(part), name)]
        setters[0](*value if isinstance(value, tuple) else (value,))
    return options


def sgd(model: nn.Module, lr: float = 0.1, **others: Any) -> poptorch.optim.SGD:
    return poptorch.optim.SGD(model.parameters(), lr=lr, **others)


def training(model: nn.Module, options: poptorch.Options | None = None, **sgd_settings: Any) -> poptorch.PoplarExecutor:
    return poptorch.trainingModel(model, options or quiet(), sgd(model, **sgd_settings))


def scale(
    optimizer: Callable[[Any], Any] | None = None, options: Any = None, model: Any = None, **settings: Any
) -> tuple[Any, Any, poptorch.PoplarExecutor]:
    """Return a `Scale` (or `model`), its optimiser (SGD at `RATE`, or `optimizer(model)`) and its executor."""
    model = model or Scale()
    made = optimizer(model) if optimizer else sgd(model, **{"lr": RATE, **settings})
    return model, made, poptorch.trainingModel(model, options or quiet(), made)


def trained(runs: int = 1) -> tuple[Any, poptorch.PoplarExecutor]:
    """Return a `Scale` and its executor after so many runs on ones at `RATE`."""
    model, _, executor = scale()
    for _ in range(runs):
        executor(ONES)
    return model, executor


def in_plain_pytorch(model: Any, *batches: tuple[Any, ...], lr: float = 0.1) -> Any:
    """Train `model`, whose last result is the loss, with PyTorch's SGD, one step for each batch; return the model."""
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    for inputs in batches:
        optimiser.zero_grad()
        model(*inputs)[-1].backward()
        optimiser.step()
    return model


def trains_alike(model: Any, plain: Any, *inputs: Tensor) -> None:
    """Check two steps of `model`, whose last result is the loss, against `plain` in PyTorch, and then the state."""
    executor, optimiser = training(model, lr=RATE), torch.optim.SGD(plain.parameters(), lr=RATE)
    for _ in range(2):
        optimiser.zero_grad()
        expected = plain(*inputs)
        expected[-1].backward()
        optimiser.step()
        torch.testing.assert_close(executor(*inputs), tuple(result.detach() for result in expected))
    torch.testing.assert_close(model.state_dict(), plain.state_dict())


def inference(model: Any, options: poptorch.Options | None = None) -> poptorch.PoplarExecutor:
    return poptorch.inferenceModel(model, options or quiet())


def runs(function: Callable[..., Any], **settings: Any) -> poptorch.PoplarExecutor:
    """Wrap a plain function of the inputs for inference; the settings are those of `quiet`."""
    return inference(Module(lambda model, *args, **kwargs: function(*args, **kwargs)), quiet(**settings))


def gradient(model: Any, *inputs: Any) -> Tensor:
    """Train one step at rate 1; return how far the weight of `model.layer` moved, which is its gradient."""
    before = model.layer.weight.detach().clone()
    executor = training(model, lr=1.0)
    executor(*inputs)
    return before - model.layer.weight.detach()


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def saved(value: Any, **how: Any) -> Any:
    """Return what torch saves and loads; `how` are arguments of `torch.load`."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **{"weights_only": False, **how})


def raw(module: nn.Module, name: str) -> Tensor:
    """Return the host's value of a parameter or buffer as it is, without asking the device for a new one."""
    *path, last = name.split(".")
    for part in path:
        module = object.__getattribute__(module, "_modules")[part]
    registries = (object.__getattribute__(module, "_parameters"), object.__getattribute__(module, "_buffers"))
    (tensor,) = (registry[last] for registry in registries if last in registry)
    with torch._C.DisableTorchFunctionSubclass():
        return torch.Tensor.detach(tensor).clone()


class FunctionModel(Module):
    """A model with two convolutions and a linear layer whose forward is `function(model, *inputs)`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        torch.manual_seed(0)
        super().__init__(function, linear=nn.Linear(4, 4), conv_a=nn.Conv2d(1, 2, 3), conv_b=nn.Conv2d(1, 2, 3))


def on_device(function: Callable[..., Any], options: poptorch.Options | None = None) -> poptorch.PoplarExecutor:
    return inference(FunctionModel(function).eval(), options)


def in_training(function: Callable[..., Any], options: poptorch.Options | None = None) -> poptorch.PoplarExecutor:
    return poptorch.trainingModel(FunctionModel(function), options or quiet())


def compiled_ops(function: Callable[..., Any], *inputs: Tensor) -> list[torch.fx.Node]:
    """Compile `function` for inference and return the ops of its graph."""
    return [node for node in graph_of(on_device(function), *inputs).ops.nodes if node.op == "call_function"]


def graph_of(executor: poptorch.PoplarExecutor, *inputs: Tensor) -> Any:
    """Compile for these inputs and return the graph."""
    executor.compile(*inputs)
    assert executor._compiled is not None
    return executor._compiled.graph
