"""The long runs: one model trained for many steps, and many programs one after another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import poptorch
from soak.usage import Usage

_FEATURES, _CLASSES, _ROWS = 16, 4, 8
_ITEMS_PER_PASS = 200
_ITEMS_OF_A_SHORT_PASS = 60


class Samples(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Samples with a class that a linear layer can tell."""

    def __init__(self, count: int) -> None:
        self._data = torch.randn(count, _FEATURES, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        row = self._data[index]
        return row, row[:_CLASSES].argmax()


class Classifier(nn.Module):
    """Two layers and their loss."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(_FEATURES, 32), nn.ReLU(), nn.Linear(32, _CLASSES))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores and loss."""
        scores = self.body(x)
        return scores, nn.functional.cross_entropy(scores, y)


def _options() -> poptorch.Options:
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(2)
    return options


def _wrapped(options: poptorch.Options) -> Any:
    model = Classifier()
    return poptorch.trainingModel(model, options, poptorch.optim.AdamW(model.parameters(), lr=1e-3))


def _loader(options: poptorch.Options, items: int, **others: Any) -> poptorch.DataLoader:
    rows = items * 2 * _ROWS
    mode = poptorch.DataLoaderMode.Async
    return poptorch.DataLoader(options, Samples(rows), batch_size=_ROWS, shuffle=True, mode=mode, **others)


def training_steps(
    steps: int, points: int, sharing: poptorch.SharingStrategy = poptorch.SharingStrategy.ForkServer
) -> Iterator[Usage]:
    """Train one model with asynchronous loading; yield at the start, after each of `points` equal parts.

    A tenth of `steps` more comes first, to warm up. Every third pass over the data is left halfway; now and then the
    weights come to the host.
    """
    options = _options()
    training = _wrapped(options)
    loader = _loader(options, _ITEMS_PER_PASS, async_options={"sharing_strategy": sharing})
    batches = _passes(loader)
    warm_up = max(1, steps // 10)
    for done in range(-warm_up, steps):
        if done >= 0 and done % max(1, steps // points) == 0:
            yield Usage.now(done)
        _, loss = training(*next(batches))
        if not bool(loss.isfinite().all()):
            raise ArithmeticError(f"the loss of step {done} is {loss}")
        if done % 100 == 0:
            training.copyWeightsToHost()
    yield Usage.now(steps)
    loader.terminate()
    training.destroy()


def _passes(loader: poptorch.DataLoader) -> Iterator[Any]:
    number = 0
    while True:
        number += 1
        for index, batch in enumerate(loader):
            if number % 3 == 0 and index == _ITEMS_OF_A_SHORT_PASS:
                break
            yield batch


def programs(count: int, points: int) -> Iterator[Usage]:
    """Make a model and a loader, train some steps and drop both, `count` times; yield as `training_steps` does."""
    sharing = {"sharing_strategy": poptorch.SharingStrategy.Fork}
    warm_up = max(2, count // 10)
    for done in range(-warm_up, count):
        if done >= 0 and done % max(1, count // points) == 0:
            yield Usage.now(done)
        options = _options()
        training, loader = _wrapped(options), _loader(options, 4, async_options=sharing)
        for batch in loader:
            training(*batch)
        if done % 2:
            loader.terminate()
            training.destroy()
        # The other half of them is left to the garbage collector.
        del training, loader
    yield Usage.now(count)
