"""Hamiltonian Monte Carlo for Bayesian logistic regression: leapfrog steps and acceptance on the device."""

import torch
from program_kit import check_close
from torch import nn
from torch.nn.functional import softplus

import poptorch

CHAINS, DIMENSION, DATA, LEAPFROG, STEP = 16, 3, 60, 8, 0.06


class HMC(nn.Module):
    def __init__(self, features, labels):
        super().__init__()
        self.register_buffer("features", features)
        self.register_buffer("labels", labels)
        self.register_buffer("position", torch.zeros(CHAINS, DIMENSION))

    def potential(self, weights):
        logits = weights @ self.features.t()
        return 0.5 * (weights**2).sum(dim=1) - (self.labels * logits - softplus(logits)).sum(dim=1)

    def gradient(self, weights):
        return weights - (self.labels - torch.sigmoid(weights @ self.features.t())) @ self.features

    def forward(self):
        momentum = torch.randn(CHAINS, DIMENSION)
        q, p = self.position, momentum - 0.5 * STEP * self.gradient(self.position)
        for i in range(LEAPFROG):
            q = q + STEP * p
            p = p - (0.5 if i == LEAPFROG - 1 else 1.0) * STEP * self.gradient(q)
        before = self.potential(self.position) + 0.5 * (momentum**2).sum(dim=1)
        after = self.potential(q) + 0.5 * (p**2).sum(dim=1)
        accept = torch.rand(CHAINS) < torch.exp(torch.clamp(before - after, max=0.0))
        self.position.copy_(torch.where(accept.unsqueeze(1), q, self.position))
        return self.position.clone(), accept.float().mean()


torch.manual_seed(0)
features = torch.randn(DATA, DIMENSION)
labels = (torch.rand(DATA) < torch.sigmoid(features @ torch.tensor([1.0, -0.7, 0.3]))).float()
sampler = HMC(features, labels)
opts = poptorch.Options().deviceIterations(25).randomSeed(17).outputMode(poptorch.OutputMode.All)
run = poptorch.inferenceModel(sampler, opts.updatableNamedBuffers(["position"]))
calls = [run() for _ in range(12)]
draws = torch.cat([positions.view(25, CHAINS, DIMENSION) for positions, _ in calls[2:]])
assert torch.stack([accepted.mean() for _, accepted in calls]).mean() > 0.6
r_hat = torch.sqrt(1 + draws.mean(dim=0).var(dim=0) / draws.var(dim=0).mean(dim=0))
assert r_hat.max() < 1.1
run.copyWeightsToHost()
check_close(sampler.position, draws[-1])
# The posterior's mean by importance sampling from the prior.
weights = torch.randn(100_000, DIMENSION)
logits = weights @ features.t()
expected = torch.softmax((labels * logits - softplus(logits)).sum(dim=1), dim=0) @ weights
assert (draws.mean(dim=(0, 1)) - expected).abs().max() < 0.1
