"""Every private or semi-private PyTorch name that capture needs; each has a canary test.

Replay of a captured graph needs public names only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.nn.modules import transformer as _transformer
from torch.nn.modules.adaptive import _ASMoutput as AdaptiveSoftmaxOutput
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as modes_disabled

__all__ = [
    "AdaptiveSoftmaxOutput",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "TorchDispatchMode",
    "autograd_node_in_progress",
    "causal_masks_undetected",
    "failures_unlogged",
    "gradient_hooks",
    "in_backward",
    "last_sequence_number",
    "mkldnn_disabled",
    "modes_disabled",
    "sequence_number",
]


def last_sequence_number() -> int:
    """Return the sequence number of the autograd node created last in this thread."""
    return torch._C._autograd._get_sequence_nr() - 1


def in_backward() -> bool:
    """Return whether the autograd engine is running a backward pass in this thread."""
    return torch._C._current_graph_task_id() != -1


def autograd_node_in_progress() -> Any | None:
    """Return the autograd node whose backward is being computed, if any."""
    return torch._C._current_autograd_node()


def sequence_number(node: Any) -> int:
    """Return the sequence number that forward gave to an autograd node."""
    return int(node._sequence_nr())


def gradient_hooks(tensor: Tensor) -> list[Callable[[Tensor], Tensor | None]]:
    """Return what `tensor.register_hook` has registered, in order."""
    return list((tensor._backward_hooks or {}).values())


@contextmanager
def mkldnn_disabled() -> Iterator[None]:
    """Keep fused oneDNN kernels out of a trace: their workspaces have no fake counterpart.

    The public `torch.backends.mkldnn.flags` also touches TF32 settings and warns about them.
    """
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


@contextmanager
def causal_masks_undetected() -> Iterator[None]:
    """Keep `nn.Transformer` from looking whether a mask's values are the causal ones.

    Results are the same: the answer only chooses a kernel.
    """
    before = _transformer._detect_is_causal_mask

    def detect(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
        return is_causal is True

    _transformer._detect_is_causal_mask = detect
    try:
        yield
    finally:
        _transformer._detect_is_causal_mask = before


@contextmanager
def failures_unlogged() -> Iterator[None]:
    """Keep fake tensors from logging the trace of an op that fails: the exception says it, as in plain PyTorch."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
