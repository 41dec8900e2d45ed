"""RealNVP on two moons: exact likelihood in training, the inverse as a second forward for sampling."""

import math

import numpy as np
import torch
import torch.nn as nn

import poptorch


def two_moons(count, generator):
    angle = generator.uniform(0, np.pi, count)
    upper = generator.random(count) < 0.5
    x = np.where(upper, np.cos(angle), 1 - np.cos(angle))
    y = np.where(upper, np.sin(angle), 0.5 - np.sin(angle))
    points = np.stack([x, y], axis=1) + 0.08 * generator.standard_normal((count, 2))
    return torch.as_tensor(points - [0.5, 0.25], dtype=torch.float32)


class Coupling(nn.Module):
    def __init__(self, mask, hidden=32):
        super().__init__()
        self.register_buffer("mask", mask)
        self.scale = nn.Sequential(nn.Linear(2, hidden), nn.LeakyReLU(), nn.Linear(hidden, 2), nn.Tanh())
        self.shift = nn.Sequential(nn.Linear(2, hidden), nn.LeakyReLU(), nn.Linear(hidden, 2))

    def forward(self, x):
        fixed = self.mask * x
        log_scale, shift = self.scale(fixed) * (1 - self.mask), self.shift(fixed) * (1 - self.mask)
        return fixed + (1 - self.mask) * (x * torch.exp(log_scale) + shift), log_scale.sum(dim=1)

    def inverse(self, z):
        fixed = self.mask * z
        log_scale, shift = self.scale(fixed) * (1 - self.mask), self.shift(fixed) * (1 - self.mask)
        return fixed + (1 - self.mask) * (z - shift) * torch.exp(-log_scale)


class RealNVP(nn.Module):
    def __init__(self, layers=6):
        super().__init__()
        masks = [torch.tensor([i % 2, 1 - i % 2], dtype=torch.float32) for i in range(layers)]
        self.layers = nn.ModuleList(Coupling(mask) for mask in masks)

    def forward(self, x):
        log_det = torch.zeros(x.shape[0])
        for layer in self.layers:
            x, change = layer(x)
            log_det = log_det + change
        log_prior = -0.5 * (x**2).sum(dim=1) - math.log(2 * math.pi)
        return -(log_prior + log_det)

    def inverse(self, z):
        for layer in reversed(self.layers):
            z = layer.inverse(z)
        return z


class NegativeLogLikelihood(nn.Module):
    def __init__(self, flow):
        super().__init__()
        self.flow = flow

    def forward(self, x):
        nll = self.flow(x)
        return nll, poptorch.identity_loss(nll, reduction="mean")


class Sampler(nn.Module):
    def __init__(self, flow, count):
        super().__init__()
        self.flow, self.count = flow, count

    def forward(self):
        return self.flow.inverse(torch.randn(self.count, 2))


def main():
    torch.manual_seed(0)
    generator = np.random.default_rng(0)
    flow = RealNVP()
    opts = poptorch.Options().deviceIterations(8)
    opts.outputMode(poptorch.OutputMode.Final)
    optimizer = poptorch.optim.Adam(flow.parameters(), lr=5e-3)
    model = poptorch.trainingModel(NegativeLogLikelihood(flow), opts, optimizer)
    losses = []
    for _ in range(40):
        nll, loss = model(two_moons(8 * 64, generator))
        assert nll.shape == (64,)
        losses.append(loss.item())
    print(f"negative log-likelihood {losses[0]:.3f} -> {losses[-1]:.3f}")
    model.detachFromDevice()

    sampler = poptorch.inferenceModel(Sampler(flow, 256), poptorch.Options().randomSeed(3))
    samples = sampler()
    again = sampler()
    assert samples.shape == (256, 2)
    assert not torch.equal(samples, again)
    distances = torch.cdist(samples, two_moons(2000, generator)).min(dim=1).values
    print(f"median distance of samples to the data {distances.median().item():.3f}")

    x = two_moons(16, generator)
    density = poptorch.inferenceModel(flow)
    torch.testing.assert_close(density(x), flow(x), rtol=1e-4, atol=1e-4)
    assert losses[-1] < losses[0] - 0.5
    assert distances.median() < 0.25


if __name__ == "__main__":
    main()
