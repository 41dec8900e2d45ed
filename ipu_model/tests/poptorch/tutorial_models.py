"""A dataset and a model written as public PopTorch tutorials write them, for the tests of such programs."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn

import poptorch


class Shapes(torch.utils.data.Dataset):  # type: ignore[type-arg]  # as tutorials write it
    """Images 8x8 with a bright square in one of four corners: the corner is the class."""

    def __init__(self, n: int = 256) -> None:
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.randint(0, 4, (n,), generator=generator)
        self.images = 0.3 * torch.randn(n, 1, 8, 8, generator=generator)
        for image, label in zip(self.images, self.labels):
            row, column = divmod(int(label), 2)
            image[0, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 1

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        return self.images[index], self.labels[index]


class ClassificationModel(nn.Module):
    """The form of the introductory tutorial: the loss is computed in forward when there are labels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 5, 3)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(5, 12, 2)
        self.norm = nn.GroupNorm(3, 12)
        self.fc1 = nn.Linear(48, 24)
        self.relu = nn.ReLU()
        self.fc2 = nn.Linear(24, 4)
        self.log_softmax = nn.LogSoftmax(dim=1)
        self.loss = nn.NLLLoss()

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        x = self.pool(self.relu(self.conv1(x)))
        x = self.norm(self.relu(self.conv2(x)))
        x = torch.flatten(x, start_dim=1)
        x = self.relu(self.fc1(x))
        x = self.log_softmax(self.fc2(x))
        # The model is responsible for the calculation of the loss when using an IPU. We do it this way:
        if self.training:
            return x, self.loss(x, labels)
        return x


class TrainingModelWithLoss(nn.Module):
    """The form of the pipelining tutorial: a wrapper adds the loss in the last block."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.loss = nn.CrossEntropyLoss()

    def forward(self, args: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        output = self.model(args)
        if labels is None:
            return output
        with poptorch.Block("B4"):
            loss = self.loss(output, labels)
        return output, loss
