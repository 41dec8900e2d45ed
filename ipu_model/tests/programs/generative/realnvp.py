"""RealNVP on a bent cloud: exact likelihood in training, the inverse as a second forward for sampling."""

import math

import torch
from program_kit import check_close, train
from torch import nn

import poptorch


class Coupling(nn.Module):
    def __init__(self, mask, hidden=32):
        super().__init__()
        self.register_buffer("mask", mask)
        self.scale = nn.Sequential(nn.Linear(2, hidden), nn.LeakyReLU(), nn.Linear(hidden, 2), nn.Tanh())
        self.shift = nn.Sequential(nn.Linear(2, hidden), nn.LeakyReLU(), nn.Linear(hidden, 2))

    def parts(self, x):
        fixed = self.mask * x
        return fixed, self.scale(fixed) * (1 - self.mask), self.shift(fixed) * (1 - self.mask)

    def forward(self, x):
        fixed, log_scale, shift = self.parts(x)
        return fixed + (1 - self.mask) * (x * torch.exp(log_scale) + shift), log_scale.sum(dim=1)

    def inverse(self, z):
        fixed, log_scale, shift = self.parts(z)
        return fixed + (1 - self.mask) * (z - shift) * torch.exp(-log_scale)


class NegativeLogLikelihood(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x):
        total = 0.0
        for layer in self.layers:
            x, change = layer(x)
            total = total + change
        nll = 0.5 * (x**2).sum(dim=1) + math.log(2 * math.pi) - total
        return nll, poptorch.identity_loss(nll, reduction="mean")


class Sampler(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self):
        z = torch.randn(256, 2)
        for layer in reversed(self.layers):
            z = layer.inverse(z)
        return z


def cloud(count):
    x = 0.7 * torch.randn(count)
    return torch.stack([x, x**2 - 0.5 + 0.1 * torch.randn(count)], dim=1)


torch.manual_seed(0)
layers = nn.ModuleList(Coupling(torch.tensor([i % 2, 1 - i % 2]).float()) for i in range(6))
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
x = cloud(16)
check_close(poptorch.inferenceModel(model)(x)[0], NegativeLogLikelihood.forward(model, x)[0])
