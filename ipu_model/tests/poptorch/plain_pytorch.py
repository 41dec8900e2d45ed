"""What a PopTorch program computes, written out in plain PyTorch: the oracle of the executor's tests."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn


@dataclass
class Results:
    """Outputs of every micro-batch as `[step][replica] -> tuple of tensors`."""

    micro_batches: list[list[tuple[Tensor, ...]]] = field(default_factory=list)

    def all(self, position: int) -> Tensor:
        """Join output `position` of all micro-batches in `[step, replica]` order."""
        return self._join([parts[position] for step in self.micro_batches for parts in step])

    def final(self, position: int) -> Tensor:
        """Join output `position` of the last step of each replica."""
        return self._join([parts[position] for parts in self.micro_batches[-1]])

    def total(self, position: int) -> Tensor:
        """Sum output `position` over steps, joined over replicas."""
        replicas = range(len(self.micro_batches[0]))
        return self._join([sum(step[r][position] for step in self.micro_batches) for r in replicas])

    def every(self, period: int, position: int) -> Tensor:
        """Join output `position` of the steps number `period`, 2 `period`, ..."""
        steps = self.micro_batches[period - 1 :: period]
        return self._join([parts[position] for step in steps for parts in step])

    @staticmethod
    def _join(parts: list[Tensor]) -> Tensor:
        if len(parts) == 1:
            return parts[0]
        return torch.stack(parts) if parts[0].dim() == 0 else torch.cat(parts)


def train(
    model: nn.Module, optimiser: torch.optim.Optimizer, x: Tensor, y: Tensor, *, iterations: int, accumulation: int,
    replicas: int, mean: bool = True, replica_models: list[nn.Module] | None = None,
) -> tuple[Results, list[nn.Module]]:  # fmt: skip
    """Run one call: rows laid out [D, A, R, B], one update per iteration, buffers kept per replica.

    `model` returns `(output, loss)`. Returns the outputs and the replicas' models (the first one is `model`).
    """
    models = replica_models or [model, *(copy.deepcopy(model) for _ in range(replicas - 1))]
    slices = iterations * accumulation * replicas
    xs, ys = x.split(len(x) // slices), y.split(len(y) // slices)
    results = Results()
    scale = accumulation * replicas if mean else 1
    for d in range(iterations):
        optimiser.zero_grad()
        for a in range(accumulation):
            step = []
            for r in range(replicas):
                k = (d * accumulation + a) * replicas + r
                output, loss = models[r](xs[k], ys[k])
                gradients = torch.autograd.grad(loss / scale, list(models[r].parameters()))
                for p, g in zip(model.parameters(), gradients):
                    p.grad = g if p.grad is None else p.grad + g
                step.append((output.detach(), loss.detach()))
            results.micro_batches.append(step)
        optimiser.step()
        for other in models[1:]:
            with torch.no_grad():
                for p, q in zip(other.parameters(), model.parameters()):
                    p.copy_(q)
    return results, models
