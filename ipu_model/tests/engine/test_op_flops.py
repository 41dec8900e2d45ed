"""FLOPs of contractions against `torch.utils.flop_counter`."""

from __future__ import annotations

import pytest
import torch
from cost_support import costed
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode


def same_flops(module: nn.Module, *inputs: Tensor) -> tuple[int, int]:
    """Return what the model and `torch.utils.flop_counter` count for forward and backward."""
    with FlopCounterMode(display=False) as counter:
        module(*inputs).float().sum().backward()
    return costed(module, *inputs).flops, counter.get_total_flops()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(2, (4, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, 2))
        return (q @ k.transpose(2, 3) / 8**0.5).softmax(3) @ v


class TestFlops:
    @pytest.mark.parametrize(
        ("module", "shape"),
        [
            (nn.Linear(20, 30), (7, 20)),
            (nn.Linear(20, 30, bias=False), (2, 7, 20)),
            (nn.Conv1d(4, 6, 5), (2, 4, 32)),
            (nn.Conv2d(4, 6, 3, stride=2, padding=1), (2, 4, 15, 15)),
            (nn.Conv2d(4, 6, 3, dilation=2), (2, 4, 15, 15)),
            (nn.Conv3d(2, 3, 3, padding=1), (1, 2, 6, 6, 6)),
            (nn.ConvTranspose2d(6, 4, 2, stride=2), (2, 6, 8, 8)),
            (nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)), (2, 3, 12, 12)),
            (Attention(), (2, 10, 32)),
        ],
    )
    def test_as_counted_by_torch(self, module: nn.Module, shape: tuple[int, ...]) -> None:
        ours, theirs = same_flops(module, torch.zeros(shape))
        assert ours == theirs

    def test_grouped_weight_gradients_are_counted_once(self) -> None:
        """torch's counter takes the weight gradient of every group over the channels of all groups."""
        module = nn.Conv2d(8, 8, 3, groups=4, padding=1)
        forward = 2 * (2 * 10 * 10) * 8 * 2 * 9
        ours, theirs = same_flops(module, torch.zeros(2, 8, 10, 10))
        assert ours == 2 * forward
        assert theirs == forward + 4 * forward

    def test_resnet(self) -> None:
        torchvision = pytest.importorskip("torchvision")
        ours, theirs = same_flops(torchvision.models.resnet18(), torch.zeros(2, 3, 64, 64))
        assert ours == theirs
