"""The gradients of a classifier, for looking at their sizes: what half precision must be able to hold."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ACTIVATIONS, WEIGHTS = "activations", "weights"
KEPT = 40  # one of so many values: enough for a histogram, and a large network has tens of millions


def gradient_sizes(model: nn.Module, images: Tensor, labels: Tensor, batch_size: int) -> dict[str, Tensor]:
    """Absolute gradients of the summed loss over ``batch_size``, in plain PyTorch and float32.

    ``images`` [N, C, H, W] may be fewer than ``batch_size``: each image's gradient is then as small as in a whole
    batch. Two flat tensors: the gradients of what convolutions and linear layers give ("activations"), and of all
    parameters ("weights"); of each tensor the largest value, and every 40th of the others. The parameters' own
    gradients are left as they were.
    """
    found: list[Tensor] = []
    handles = [layer.register_forward_hook(_watching(found)) for layer in model.modules() if _is_contraction(layer)]
    try:
        loss = F.cross_entropy(model(images), labels, reduction="sum") / batch_size
    finally:
        for handle in handles:
            handle.remove()
    parameters = [each for each in model.parameters() if each.requires_grad]
    gradients = torch.autograd.grad(loss, [*found, *parameters])
    return {ACTIVATIONS: _thinned(gradients[: len(found)]), WEIGHTS: _thinned(gradients[len(found) :])}


def share_below(sizes: Tensor, exponent: int) -> float:
    """The share, 0 to 1, of non-zero ``sizes`` that are smaller than 2 to the power of ``exponent``."""
    there = sizes[sizes > 0]
    return float((there < 2.0**exponent).float().mean()) if len(there) else 0.0


def _is_contraction(layer: nn.Module) -> bool:
    return isinstance(layer, (nn.Conv2d, nn.Linear))


def _watching(found: list[Tensor]) -> Any:
    def watch(layer: nn.Module, inputs: object, result: Tensor) -> None:
        found.append(result)

    return watch


def _thinned(gradients: Any) -> Tensor:
    parts = [part for each in gradients for part in (each.abs().max().view(1), each.flatten()[::KEPT].abs())]
    return torch.cat([part.float() for part in parts])
