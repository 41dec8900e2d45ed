"""The small network that the lessons train for real, and a loss around any classifier."""

from __future__ import annotations

from torch import Tensor, nn

CLASSES = 10


class SmallNetwork(nn.Module):
    """Colour images [N, 3, 32, 32] to logits [N, 10]: three convolutions, each with normalisation and pooling."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.features = nn.Sequential(*_stage(3, width), *_stage(width, 2 * width), *_stage(2 * width, 4 * width))
        self.head = nn.Linear(4 * width * 4 * 4, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).flatten(1))  # type: ignore[no-any-return]  # nn.Module's call is Any


def _stage(before: int, after: int) -> list[nn.Module]:
    return [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(4, after), nn.ReLU(), nn.MaxPool2d(2)]


class WithLoss(nn.Module):
    """A classifier that gives (logits [N, classes], mean cross-entropy []) with labels [N], and logits without."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.loss = nn.CrossEntropyLoss()

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        logits: Tensor = self.model(images)
        if labels is None:
            return logits
        return logits, self.loss(logits, labels)
