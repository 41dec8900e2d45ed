"""The network of the MNIST pipelining tutorial, in four named blocks."""

from __future__ import annotations

from torch import Tensor, nn

import poptorch

BLOCKS = ("B1", "B2", "B3", "B4")


class ConvLayer(nn.Module):
    """Convolution, max-pooling and ReLU: [N, in_channels, H, W] to [N, num_filters, H', W'].

    H' = (H - kernel_size + 1) // pool_size, W' likewise.
    """

    def __init__(self, in_channels: int, num_filters: int, kernel_size: int, pool_size: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, num_filters, kernel_size=kernel_size)
        self.pool = nn.MaxPool2d(kernel_size=pool_size)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        x = self.pool(x)
        return self.relu(x)  # type: ignore[no-any-return]  # nn.Module's call is typed Any


class Network(nn.Module):
    """Digits [N, 1, 28, 28] to logits [N, 10], in the blocks B1 to B4."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1 = ConvLayer(1, 10, 5, 2)
        self.layer2 = ConvLayer(10, 20, 5, 2)
        self.layer3 = nn.Linear(320, 256)
        self.layer3_act = nn.ReLU()
        self.layer4 = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        with poptorch.Block("B1"):
            x = self.layer1(x)
        with poptorch.Block("B2"):
            x = self.layer2(x)
        with poptorch.Block("B3"):
            x = x.view(-1, 320)
            x = self.layer3_act(self.layer3(x))
        with poptorch.Block("B4"):
            return self.layer4(x)  # type: ignore[no-any-return]  # nn.Module's call is typed Any


class TrainingModelWithLoss(nn.Module):
    """A model with its loss in block B4: with labels [N] it gives (logits [N, 10], mean cross-entropy [])."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.loss = nn.CrossEntropyLoss()

    def forward(self, args: Tensor, labels: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        output: Tensor = self.model(args)
        if labels is None:
            return output
        with poptorch.Block("B4"):
            loss: Tensor = self.loss(output, labels)
        return output, loss
