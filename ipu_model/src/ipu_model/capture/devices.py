"""Moves between host and device inside `forward`: what programs may ask of `.to()`, `.cpu()` and `device=`.

While a model is traced its tensors live on the device, whatever `tensor.device` says here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ipu_model.capture.origins import Origins
from ipu_model.capture.torch_private import FakeTensor
from ipu_model.errors import Error

_HERE = torch.device("cpu")
_MAKERS = (torch.tensor, torch.as_tensor)


def follow_moves(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], origins: Origins
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with the pseudo device "ipu" replaced, noting tensors that move to the device.

    Raises:
        Error: a tensor of the device is sent to the CPU.
    """
    if _is_ipu(kwargs.get("device")):
        kwargs = {**kwargs, "device": _HERE}
    if func in _MAKERS and args and isinstance(args[0], Tensor) and not isinstance(args[0], FakeTensor):
        origins.adopt(args[0])
    if func is Tensor.cpu:
        _check_stays(args[0], ".cpu()")
    if func is Tensor.to:
        target = args[1] if len(args) > 1 else kwargs.get("device", kwargs.get("other"))
        if isinstance(target, str) and target.split(":")[0] == "cpu":
            _check_stays(args[0], f'.to("{target}")')
        elif isinstance(target, (str, torch.device, FakeTensor)) and not isinstance(args[0], FakeTensor):
            origins.adopt(args[0])
        if _is_ipu(target) and len(args) > 1:
            args = (args[0], _HERE, *args[2:])
    return args, kwargs


def _is_ipu(device: object) -> bool:
    if isinstance(device, torch.device):
        return device.type == "ipu"
    return isinstance(device, str) and device.split(":")[0] == "ipu"


def _check_stays(tensor: Tensor, how: str) -> None:
    if isinstance(tensor, FakeTensor):
        raise Error(
            f"Illegal move to CPU: forward sends a tensor of the device to the host with {how}. Return the "
            "tensor from forward instead, it arrives on the CPU; poptorch.isRunningOnIpu() tells the two "
            "cases apart."
        )
