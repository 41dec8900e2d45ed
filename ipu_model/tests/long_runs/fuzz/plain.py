"""The oracle: what plain PyTorch computes for a program, micro-batch by micro-batch, written without our engine."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from fuzz.cases import Case
from fuzz.networks import Network

# What a device without 64-bit numbers gives back (execution reference, 5.4).
RETURNED = {torch.int64: torch.int32, torch.float64: torch.float32}
# The same types on the way in; the device computes them in 32 bits.
SENT = {torch.float64: torch.float32, torch.bfloat16: torch.float32}


def slices(case: Case) -> int:
    """Return into how many equal parts the rows of a call are cut: D x A x R / G."""
    return case.iterations * case.accumulation * (case.replicas // case.group)


class PlainProgram:
    """A copy of a network with an optimiser of its own; buffers are kept per replica."""

    def __init__(self, network: Network, optimiser: Any, case: Case) -> None:
        self.case = case
        self.network = copy.deepcopy(network)
        self.optimiser = None if optimiser is None else optimiser(self.network.parameters())
        self._replicas = [self.network, *(copy.deepcopy(self.network) for _ in range(case.replicas - 1))]

    def call(self, inputs: Any) -> Any:
        """Return what a call of the program returns, in the network's own structure."""
        with plain_kernels():
            return self._call(inputs)

    def _call(self, inputs: Any) -> Any:
        case = self.case
        steps = []
        for iteration in range(case.iterations):
            if self.optimiser is not None:
                self.optimiser.zero_grad()
            for step in range(iteration * case.accumulation, (iteration + 1) * case.accumulation):
                steps.append([self._micro_batch(inputs, step, replica) for replica in range(case.replicas)])
            if self.optimiser is not None:
                self._update(self.optimiser)
        return _returned(case, steps, self.network.kind.constants)

    def _micro_batch(self, inputs: Any, step: int, replica: int) -> Any:
        case = self.case
        chunks = case.replicas // case.group
        chunk = replica % chunks if case.has("orthogonal groups") else replica // case.group
        index = step * chunks + chunk

        def cut(tensor: Tensor) -> Tensor:
            part = tensor.detach().chunk(slices(case))[index].clone()
            return part.to(SENT.get(part.dtype, part.dtype))

        network = self._replicas[replica]
        if self.optimiser is None:
            with torch.no_grad():
                return network(tree_map_only(Tensor, cut, inputs))
        result = network(tree_map_only(Tensor, cut, inputs))
        count = 1 if case.has("sum") else case.accumulation * case.replicas
        (result[1] / count).backward()
        return tree_map_only(Tensor, Tensor.detach, result)

    def _update(self, optimiser: torch.optim.Optimizer) -> None:
        own = list(self.network.parameters())
        with torch.no_grad():
            for other in self._replicas[1:]:
                for mine, its in zip(own, other.parameters(), strict=True):
                    if its.grad is not None:
                        mine.grad = its.grad if mine.grad is None else mine.grad + its.grad
                        its.grad = None
            optimiser.step()
            for other in self._replicas[1:]:
                for mine, its in zip(own, other.parameters(), strict=True):
                    its.copy_(mine)


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Turn off PyTorch's fused inference of transformers: no half precision on many machines, zeros for padding."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def resolved_mode(case: Case) -> str:
    """Return the output mode that a program has without choosing one: the last result, or all for inference."""
    if case.mode != "Default":
        return case.mode
    return "Final" if case.training else "All"


def _returned(case: Case, steps: list[list[Any]], constants: frozenset[int]) -> Any:
    """Join micro-batch results as the output mode asks; results that are no tensors are those of any step."""
    flat = [[tree_flatten(result)[0] for result in step] for step in steps]
    structure = tree_flatten(steps[0][0])[1]
    leaves = [
        _sent_back(flat[0][0][position])
        if position in constants
        else _joined(case, [[result[position] for result in step] for step in flat])
        for position in range(len(flat[0][0]))
    ]
    return tree_unflatten(leaves, structure)


def _joined(case: Case, steps: list[list[Any]]) -> Any:
    if not isinstance(steps[0][0], Tensor):
        return steps[0][0]
    return _sent_back(_all_joined(case, steps))


def _sent_back(value: Any) -> Any:
    return value.to(RETURNED.get(value.dtype, value.dtype)) if isinstance(value, Tensor) else value


def _all_joined(case: Case, steps: list[list[Tensor]]) -> Tensor:
    mode = resolved_mode(case)
    if mode == "Sum":
        parts = [sum_of([step[replica] for step in steps]) for replica in range(case.replicas)]
    else:
        kept = {"All": steps, "Final": steps[-1:], "EveryN": steps[case.period - 1 :: case.period]}[mode]
        parts = [value for step in kept for value in step]
    if len(parts) == 1:
        return parts[0]
    return torch.stack(parts) if parts[0].dim() == 0 else torch.cat(parts)


def sum_of(values: list[Tensor]) -> Tensor:
    """Return the sum of tensors in their own element type."""
    total = values[0].clone()
    for value in values[1:]:
        total = total + value
    return total.to(values[0].dtype)
