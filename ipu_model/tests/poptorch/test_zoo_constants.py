"""Masks, numbers and choices that forward makes of constants: known when the graph is made, as if written by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from modelling_support import quiet
from torch import Tensor, nn
from zoo_support import Function, check_training

import poptorch


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def pairs_of_views(features: Tensor) -> Tensor:
    """The contrastive loss of two views of a batch, with boolean masks for itself, its pair and the others."""
    labels = torch.cat([torch.arange(3) for _ in range(2)])
    labels = (labels.unsqueeze(0) == labels.unsqueeze(1)).float().to(features.device)
    features = F.normalize(features, dim=1)
    mask = torch.eye(labels.shape[0], dtype=torch.bool).to(features.device)
    labels = labels[~mask].view(6, -1)
    similarity = (features @ features.T)[~mask].view(6, -1)
    positives = similarity[labels.bool()].view(6, -1)
    negatives = similarity[~labels.bool()].view(6, -1)
    return F.cross_entropy(torch.cat([positives, negatives], dim=1) / 0.1, torch.zeros(6, dtype=torch.long))


def mask_written_by_a_loop(features: Tensor) -> Tensor:
    similarity = F.cosine_similarity(features.unsqueeze(1), features.unsqueeze(0), dim=2)
    mask = torch.ones((6, 6), dtype=torch.bool).fill_diagonal_(0)
    for row in range(3):
        mask[row, 3 + row] = 0
        mask[3 + row, row] = 0
    positives = torch.cat([torch.diag(similarity, 3), torch.diag(similarity, -3)]).reshape(6, 1)
    return torch.cat([positives, similarity[mask].reshape(6, -1)], dim=1).logsumexp(1)


def normalised(images: Tensor) -> Tensor:
    """As torchvision's normalize: it looks whether a deviation is zero."""
    deviation = torch.as_tensor([0.5, 0.2, 0.1], dtype=images.dtype, device=images.device)
    if (deviation == 0).any():
        raise ValueError("a deviation is zero")
    return images / deviation.view(-1, 1, 1)


def through_a_view(x: Tensor) -> Tensor:
    mask = torch.zeros_like(x)
    mask[0].fill_(1)
    return x[mask.bool()]


class Registered(nn.Module):
    """Masks and lengths in buffers of whole numbers, which the device takes as constants."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)
        self.register_buffer("mask", torch.ones(3, 3).tril().bool())
        self.register_buffer("lengths", torch.tensor([2, 1, 3]))

    def forward(self, x: Tensor) -> Any:
        y = self.layer(x)
        picked = y.view(3, 2, 3)[self.mask[:, :2]], y[:, :3].masked_select(self.mask)
        repeated = torch.repeat_interleave(y, self.lengths, 0)
        return picked, repeated, y.split(self.lengths.tolist(), 1), [y[:n].sum() for n in self.lengths.tolist()]


A, SQUARE = numbers(3, 4), numbers(3, 3)
KNOWN: dict[str, tuple[Any, Tensor]] = {
    "pairs of views": (pairs_of_views, numbers(6, 4)),
    "a mask written by a loop": (mask_written_by_a_loop, numbers(6, 4)),
    "a mask written through a view": (through_a_view, SQUARE),
    "normalised images": (normalised, numbers(2, 3, 2, 2)),
    "upper triangle": (lambda x: x[:, torch.ones_like(x[0]).triu(1).bool()], numbers(2, 3, 3)),
    "a mask and a number": (lambda x: x[1, torch.tensor([True, False, True])], SQUARE),
    "a mask and indices": (lambda x: x[torch.tensor([0, 1]), torch.tensor([True, False, True])], SQUARE),
    "masked_select, broadcast": (lambda x: x.masked_select(torch.tensor([True, False, True])), SQUARE),
    "nonzero": (lambda x: x[torch.nonzero(torch.tensor([0, 1, 1])).squeeze(1)], SQUARE),
    "unique": (lambda x: x[torch.unique(torch.tensor([2, 0, 2]))], SQUARE),
    "bincount": (lambda x: x * torch.bincount(torch.tensor([0, 1, 1, 2])), SQUARE),
    "one_hot without a number of classes": (lambda x: F.one_hot(torch.arange(3) % 2).float() @ x[:2], SQUARE),
    "cov": (torch.cov, A),
    "cov with frequencies": (lambda x: torch.cov(x, fweights=torch.tensor([1, 2, 1, 1])), A),
    "corrcoef": (torch.corrcoef, A),
    "combinations": (lambda x: torch.combinations(x), numbers(5)),
    "combinations with replacement": (lambda x: torch.combinations(x, 3, with_replacement=True), numbers(4)),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_values_and_gradients_are_those_of_pytorch(name: str) -> None:
    function, argument = KNOWN[name]
    check_training(Function(function), argument)


def test_also_of_buffers() -> None:
    check_training(Registered(), A)


def written_with_data(x: Tensor) -> Tensor:
    mask = torch.zeros(3, dtype=torch.bool)
    mask |= x[0] > 0
    return x[:, mask]


class Counting(nn.Module):
    """A counter that outlives the call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls.item()


UNKNOWN: dict[str, tuple[nn.Module, str]] = {
    "a mask that data are written to": (Function(written_with_data), "shape of a result depends on data"),
    "random numbers": (Function(lambda x: x * torch.rand(3).sum().item()), "branches on data"),
    "a counter": (Counting(), "branches on data"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_may_change_from_call_to_call_is_not_known(name: str) -> None:
    model, words = UNKNOWN[name]
    with pytest.raises(poptorch.Error, match=words):
        poptorch.inferenceModel(model, quiet())(SQUARE)


WORDS: dict[str, tuple[Any, str]] = {
    "where": (lambda x: torch.where(x > 0)[0], r"torch\.where\(mask\) alone; keep a fixed number .* topk"),
    "argwhere": (lambda x: torch.argwhere(x > 0), "A mask made of constants is fine"),
    "unique": (lambda x: x.unique(), "on the host, in the data set"),
    "repeat_interleave": (lambda x: x[0].repeat_interleave((x[0] > 0).int()), "output_size="),
}


@pytest.mark.parametrize("name", WORDS)
def test_the_refusal_names_the_nearest_thing_that_works(name: str) -> None:
    function, words = WORDS[name]
    with pytest.raises(poptorch.Error, match=f"The shape of a result depends on data .*{words}"):
        poptorch.inferenceModel(Function(function), quiet())(SQUARE)


def test_and_it_works() -> None:
    check_training(Function(lambda x: x[0].repeat_interleave((x[0] > -9).int(), output_size=3)), SQUARE)
