"""The oracle: what plain PyTorch computes for a program, micro-batch by micro-batch, written without our engine."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from fuzz.cases import Case, plain_optimiser_of
from fuzz.networks import Network

# What a device without 64-bit numbers gives back (execution reference, 5.4).
RETURNED = {torch.int64: torch.int32, torch.float64: torch.float32}
# The same types on the way in; the device computes them in 32 bits.
SENT = {torch.float64: torch.float32, torch.bfloat16: torch.float32}


class PlainProgram:
    """A copy of a network with an optimiser of its own; replicas share its parameters, and have their own buffers."""

    def __init__(self, network: Network, case: Case) -> None:
        self.case = case
        self.network = copy.deepcopy(network)
        self.optimiser = plain_optimiser_of(case, self.network)
        shared = {id(parameter): parameter for parameter in self.network.parameters()}
        others = (copy.deepcopy(self.network, dict(shared)) for _ in range(case.replicas - 1))
        self._replicas = [self.network, *others]

    def call(self, inputs: Any) -> Any:
        """Return what a call of the program returns, in the network's own structure."""
        case, steps = self.case, []
        with plain_kernels():
            for step in range(case.iterations * case.accumulation):
                if self.optimiser is not None and step % case.accumulation == 0:
                    self.optimiser.zero_grad()
                steps.append([self._micro_batch(inputs, step, replica) for replica in range(case.replicas)])
                if self.optimiser is not None and (step + 1) % case.accumulation == 0:
                    self.optimiser.step()
        return self._returned(steps)

    def _micro_batch(self, inputs: Any, step: int, replica: int) -> Any:
        case = self.case
        chunks = case.replicas // case.group
        chunk = replica % chunks if case.has("orthogonal groups") else replica // case.group

        def cut(tensor: Tensor) -> Tensor:
            part = tensor.detach().chunk(case.slices)[step * chunks + chunk].clone()
            return part.to(SENT.get(part.dtype, part.dtype))

        with torch.set_grad_enabled(self.optimiser is not None):
            result = self._replicas[replica](tree_map_only(Tensor, cut, inputs))
        if self.optimiser is not None:
            (result[1] / (1 if case.has("sum") else case.accumulation * case.replicas)).backward()
        return tree_map_only(Tensor, Tensor.detach, result)

    def _returned(self, steps: list[list[Any]]) -> Any:
        """Join micro-batch results as the output mode asks; results that are no tensors are those of any step."""
        flat = [[tree_flatten(result)[0] for result in step] for step in steps]
        leaves = []
        for position, leaf in enumerate(flat[0][0]):
            if isinstance(leaf, Tensor):
                if position not in self.network.kind.constants:
                    leaf = _joined(self.case, [[result[position] for result in step] for step in flat])
                leaf = leaf.to(RETURNED.get(leaf.dtype, leaf.dtype))
            leaves.append(leaf)
        return tree_unflatten(leaves, tree_flatten(steps[0][0])[1])


def _joined(case: Case, steps: list[list[Tensor]]) -> Any:
    mode = case.mode if case.mode != "Default" else "Final" if case.training else "All"
    if mode == "Sum":
        parts = [sum(rest, start=first).to(first.dtype) for first, *rest in zip(*steps, strict=True)]
    else:
        kept = {"All": steps, "Final": steps[-1:], "EveryN": steps[case.period - 1 :: case.period]}[mode]
        parts = [value for step in kept for value in step]
    if len(parts) == 1:
        return parts[0]
    return torch.stack(parts) if parts[0].dim() == 0 else torch.cat(parts)


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Turn off PyTorch's fused inference of transformers: no half precision on many machines, zeros for padding."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
