"""What the tests of costs share: a module with a loss, and costs with default settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from tracing_support import traced

from ipu_model.capture import tracing
from ipu_model.capture.describe import step_of
from ipu_model.predict.costs import Costs, costs_of, total_of
from ipu_model.predict.device import CostSettings, Device
from ipu_model.predict.memory import steps_of
from ipu_model.step import Step

SETTINGS = CostSettings()
GC200 = Device()


class Trained(nn.Module):
    """A module with a loss: the sum of its output."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        output = self.module(*inputs)
        loss = output.float().sum()
        trace = tracing.current()
        if trace is not None:
            trace.loss_marks.append(loss)
        return output, loss


class Calling(nn.Module):
    def __init__(self, function: Callable[..., Any], *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.function = nn.ModuleList(layers), function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*self.layers, *inputs)


def stepped(module: nn.Module, *inputs: Tensor, training: bool = True) -> Step:
    return step_of(traced(module, *inputs, training=training))


def costed(module: nn.Module, *inputs: Tensor, settings: CostSettings = SETTINGS) -> Costs:
    return costs_of(stepped(Trained(module), *inputs), settings)


def distinct_phases(module: nn.Module, *inputs: Tensor) -> int:
    """Return how many exchange phases the code of a training step has: those of equal ops and rounds count once."""
    step = stepped(Trained(module), *inputs)
    return steps_of(step, costs_of(step, SETTINGS), 0, calls=1).phases


def cycles(found: Costs, settings: CostSettings = SETTINGS, **where: Any) -> float:
    return settings.device.total(total_of(found.of(**where)))
