"""RealNVP on a bent cloud: exact likelihood in training, the inverse as a second forward for sampling."""

import torch
from program_kit import Over, inferred, train
from torch import nn

import poptorch


class Coupling(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.register_buffer("mask", torch.tensor([number % 2, 1 - number % 2]).float())
        self.scale = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(), nn.Linear(32, 2), nn.Tanh())
        self.shift = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(), nn.Linear(32, 2))

    def forward(self, x, backwards=False):
        fixed, free = self.mask * x, 1 - self.mask
        log_scale, shift = self.scale(fixed) * free, self.shift(fixed) * free
        moved = (x - shift) * torch.exp(-log_scale) if backwards else x * torch.exp(log_scale) + shift
        return fixed + free * moved, log_scale.sum(dim=1)


class NegativeLogLikelihood(Over):
    def forward(self, x):
        total = 0.0
        for layer in self.network:
            x, change = layer(x)
            total = total + change
        nll = 0.5 * (x**2).sum(dim=1) + 1.8379 - total
        return nll, poptorch.identity_loss(nll, reduction="mean")


class Sampler(Over):
    def forward(self):
        z = torch.randn(256, 2)
        for layer in reversed(self.network):
            z, _ = layer(z, backwards=True)
        return z


def cloud(count):
    x = 0.7 * torch.randn(count)
    return torch.stack([x, x**2 - 0.5 + 0.1 * torch.randn(count)], dim=1)


torch.manual_seed(0)
layers = nn.ModuleList(Coupling(number) for number in range(6))
opts = poptorch.Options().deviceIterations(8).outputMode(poptorch.OutputMode.Final)
model = NegativeLogLikelihood(layers)
training = poptorch.trainingModel(model, opts, poptorch.optim.Adam(layers.parameters(), lr=5e-3))
losses = train(training, ((cloud(8 * 64),) for _ in range(40)))
training.detachFromDevice()
assert losses[-1] < losses[0] - 0.5
sampler = poptorch.inferenceModel(Sampler(layers), poptorch.Options().randomSeed(3))
samples = sampler()
assert not torch.equal(samples, sampler())
assert torch.cdist(samples, cloud(2000)).min(dim=1).values.median() < 0.25
inferred(model, cloud(16))
