"""A mixture of experts with top-two gating, static capacity, and a loss that balances the experts' load."""

from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F

import poptorch


class Router(nn.Module):
    def __init__(self, dim, experts, capacity):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim, experts) * 0.02)
        self.experts, self.capacity = experts, capacity

    def forward(self, x):
        probabilities = torch.softmax(x @ self.weight, dim=-1)
        weights, chosen = torch.topk(probabilities, 2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        mask = F.one_hot(chosen, self.experts).to(x.dtype)
        # The place of a token in its expert's queue; tokens beyond the capacity are dropped.
        flat = mask.transpose(0, 1).reshape(-1, self.experts)
        place = ((torch.cumsum(flat, dim=0) - flat) * flat).sum(-1).reshape(2, -1).transpose(0, 1)
        keep = (place < self.capacity).to(x.dtype)
        slots = F.one_hot(place.clamp(max=self.capacity - 1).long(), self.capacity).to(x.dtype)
        combine = torch.einsum("tk,tke,tkc->tec", weights * keep, mask, slots)
        load = mask.sum(1).mean(0)
        balance = self.experts * (load * probabilities.mean(0)).sum()
        return combine, balance, chosen


class Experts(nn.Module):
    def __init__(self, experts, dim, hidden):
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(experts, dim, hidden) / dim**0.5)
        self.w2 = nn.Parameter(torch.randn(experts, hidden, dim) / hidden**0.5)

    def forward(self, x):
        return torch.bmm(F.gelu(torch.bmm(x, self.w1)), self.w2)


class MoE(nn.Module):
    def __init__(self, vocab, dim=16, experts=4, capacity=32, classes=5):
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim)
        self.router, self.experts = Router(dim, experts, capacity), Experts(experts, dim, 32)
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, tokens, labels=None):
        x = self.embedding(tokens)
        flat = x.reshape(-1, x.size(-1))
        combine, balance, chosen = self.router(flat)
        dispatched = torch.einsum("tec,td->ecd", (combine > 0).to(x.dtype), flat)
        y = torch.einsum("tec,ecd->td", combine, self.experts(dispatched)).reshape_as(x)
        logits = self.head(self.norm(x + y).mean(1))
        if labels is None:
            return logits, F.one_hot(chosen, 4).sum((0, 1))
        return poptorch.identity_loss(F.cross_entropy(logits, labels) + 0.01 * balance, "none"), balance


def batch(n, vocab, length, classes):
    labels = torch.randint(0, classes, (n,))
    tokens = torch.randint(0, vocab // classes, (n, length)) * classes + labels[:, None]
    noise = torch.rand(n, length) < 0.4
    return torch.where(noise, torch.randint(0, vocab, (n, length)), tokens), labels


if __name__ == "__main__":
    args = SimpleNamespace(steps=40)
    torch.manual_seed(0)
    model = MoE(40)
    opts = poptorch.Options()
    opts.Training.gradientAccumulation(2)
    training = poptorch.trainingModel(model, opts, poptorch.optim.AdamW(model.parameters(), lr=1e-2))
    history = []
    for _ in range(args.steps):
        loss, balance = training(*batch(16, 40, 8, 5))
        history.append(loss.item())
    print(f"loss {history[0]:.3f} -> {history[-1]:.3f}, balance {balance.item():.3f}")
    training.detachFromDevice()
    model.eval()
    inference = poptorch.inferenceModel(model)
    tokens, labels = batch(8, 40, 8, 5)
    logits, counts = inference(tokens)
    expected, expected_counts = MoE.forward(model, tokens)
    torch.testing.assert_close(logits, expected.detach(), rtol=1e-4, atol=1e-4)
    assert counts.sum().item() == 2 * tokens.numel() and torch.equal(counts, expected_counts.to(counts.dtype))
    assert history[-1] < 0.6 * history[0]
