"""Networks of every kind that the course and its readers train: each op has a formula."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from cost_support import costed
from torch import Tensor, nn


class TestKnownOps:
    @pytest.mark.parametrize(
        "name", ["alexnet", "squeezenet1_1", "mobilenet_v3_small", "shufflenet_v2_x0_5", "efficientnet_b0"]
    )
    def test_convolutional_classifiers(self, name: str) -> None:
        torchvision = pytest.importorskip("torchvision")
        found = costed(getattr(torchvision.models, name)(), torch.zeros(2, 3, 96, 96))
        assert found.fallbacks == ()

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["swin_t", "swin_v2_t", "vit_b_32", "convnext_tiny", "densenet121", "maxvit_t"])
    def test_large_classifiers(self, name: str) -> None:
        torchvision = pytest.importorskip("torchvision")
        found = costed(getattr(torchvision.models, name)(), torch.zeros(1, 3, 224, 224))
        assert found.fallbacks == ()

    @pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
    def test_recurrent_networks(self, kind: type[nn.LSTM | nn.GRU | nn.RNN]) -> None:
        class Recurrent(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.embedding = nn.Embedding(50, 16)
                self.layers = kind(16, 32, 2, batch_first=True)

            def forward(self, tokens: Tensor) -> Tensor:
                return self.layers(self.embedding(tokens))[0][:, -1]

        assert costed(Recurrent(), torch.zeros(4, 6, dtype=torch.int32)).fallbacks == ()

    def test_transformers(self) -> None:
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, activation="gelu")
        assert costed(nn.TransformerEncoder(layer, 2), torch.zeros(2, 10, 32)).fallbacks == ()

    def test_u_nets(self) -> None:
        class UNet(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.LeakyReLU())
                self.middle = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.InstanceNorm2d(16))
                self.up = nn.ConvTranspose2d(16, 8, 2, 2)
                self.drop = nn.Dropout2d(0.1)

            def forward(self, x: Tensor) -> Tensor:
                wide, deep = self.down(x), self.middle(self.down(x))
                grown = F.interpolate(deep, scale_factor=2, mode="bilinear")
                return torch.cat([wide, self.drop(self.up(deep)), F.pad(grown, (1, -1, 0, 0))], 1)

        assert costed(UNet(), torch.zeros(2, 3, 16, 16)).fallbacks == ()
