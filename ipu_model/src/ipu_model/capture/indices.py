"""Indices of 32 bits and fewer: the device has no wider ones, torch wants 64 bits for some functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_NARROW = (torch.int32, torch.int16, torch.int8, torch.uint8)

# Functions that want 64-bit indices -> where these are among the positional arguments, and their name.
_INDEX_OF: Mapping[Callable[..., Any], tuple[int, str]] = {
    **dict.fromkeys((F.cross_entropy, F.nll_loss, F.multi_margin_loss, F.multilabel_margin_loss), (1, "target")),
    F.one_hot: (0, "tensor"),
    **dict.fromkeys((torch.take_along_dim, Tensor.take_along_dim), (1, "indices")),
    **dict.fromkeys((torch.take, Tensor.take, torch.put, Tensor.put, Tensor.put_), (1, "index")),
    **dict.fromkeys((
        torch.gather, Tensor.gather, torch.scatter, Tensor.scatter, Tensor.scatter_, torch.scatter_add,
        Tensor.scatter_add, Tensor.scatter_add_, torch.index_copy, Tensor.index_copy, Tensor.index_copy_,
        torch.index_fill, Tensor.index_fill, Tensor.index_fill_,
    ), (2, "index")),
}  # fmt: skip


def widen_index(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of `func` with its index in 64 bits, if it has one; no other argument changes.

    What a function in place writes to must stay the same tensor.
    """
    if func not in _INDEX_OF:
        return args, kwargs
    position, name = _INDEX_OF[func]
    if len(args) > position:
        return (*args[:position], _wide(args[position]), *args[position + 1 :]), kwargs
    return args, {**kwargs, name: _wide(kwargs[name])} if name in kwargs else kwargs


def _wide(index: Any) -> Any:
    return index.long() if isinstance(index, Tensor) and index.dtype in _NARROW else index
