"""A mixture of experts with top-two gating, static capacity, and a loss that balances the experts' load."""

import torch
from program_kit import check_learned, inferred
from torch import nn
from torch.nn import functional as F

import poptorch

VOCAB, DIM, EXPERTS, CAPACITY, HIDDEN, CLASSES = 40, 16, 4, 32, 32, 5


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(DIM, EXPERTS) * 0.02)

    def forward(self, x):
        probabilities = torch.softmax(x @ self.weight, dim=-1)
        weights, chosen = torch.topk(probabilities, 2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        mask = F.one_hot(chosen, EXPERTS).to(x.dtype)
        # The place of a token in its expert's queue; tokens beyond the capacity are dropped.
        flat = mask.transpose(0, 1).reshape(-1, EXPERTS)
        place = ((torch.cumsum(flat, dim=0) - flat) * flat).sum(-1).reshape(2, -1).transpose(0, 1)
        keep = (place < CAPACITY).to(x.dtype)
        slots = F.one_hot(place.clamp(max=CAPACITY - 1).long(), CAPACITY).to(x.dtype)
        combine = torch.einsum("tk,tke,tkc->tec", weights * keep, mask, slots)
        balance = EXPERTS * (mask.sum(1).mean(0) * probabilities.mean(0)).sum()
        return combine, balance, chosen


class MoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.router = nn.Embedding(VOCAB, DIM), Router()
        self.w1 = nn.Parameter(torch.randn(EXPERTS, DIM, HIDDEN) / DIM**0.5)
        self.w2 = nn.Parameter(torch.randn(EXPERTS, HIDDEN, DIM) / HIDDEN**0.5)
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, CLASSES)

    def forward(self, tokens, labels=None):
        x = self.embedding(tokens)
        flat = x.reshape(-1, x.size(-1))
        combine, balance, chosen = self.router(flat)
        dispatched = torch.einsum("tec,td->ecd", (combine > 0).to(x.dtype), flat)
        results = torch.bmm(F.gelu(torch.bmm(dispatched, self.w1)), self.w2)
        y = torch.einsum("tec,ecd->td", combine, results).reshape_as(x)
        logits = self.head(self.norm(x + y).mean(1))
        if labels is None:
            return logits, F.one_hot(chosen, EXPERTS).sum((0, 1))
        return balance, poptorch.identity_loss(F.cross_entropy(logits, labels) + 0.01 * balance, "none")


def batch(n, length=8):
    labels = torch.randint(0, CLASSES, (n,))
    tokens = torch.randint(0, VOCAB // CLASSES, (n, length)) * CLASSES + labels[:, None]
    return torch.where(torch.rand(n, length) < 0.4, torch.randint(0, VOCAB, (n, length)), tokens), labels


torch.manual_seed(0)
model = MoE()
opts = poptorch.Options()
opts.Training.gradientAccumulation(2)
training = poptorch.trainingModel(model, opts, poptorch.optim.AdamW(model.parameters(), lr=1e-2))
check_learned([training(*batch(16))[1].item() for _ in range(40)], 0.6)
training.detachFromDevice()
tokens, _ = batch(8)
_, counts = inferred(model, tokens)
assert counts.sum().item() == 2 * tokens.numel()
