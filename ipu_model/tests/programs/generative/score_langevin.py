"""Denoising score matching on a mixture of Gaussians, sampled by Langevin dynamics in an on-device loop."""

from types import SimpleNamespace

import torch
import torch.nn as nn

import poptorch


class ScoreNetwork(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(3, hidden), nn.Softplus(), nn.Linear(hidden, hidden), nn.Softplus(), nn.Linear(hidden, 2)
        )

    def forward(self, x, sigma):
        return self.layers(torch.cat([x, torch.log(sigma)], dim=-1)) / sigma


class ScoreMatching(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x, sigma):
        noise = torch.randn(x.shape[0], 2)
        score = self.network(x + sigma * noise, sigma)
        loss = (sigma * score + noise).square().sum(dim=-1)
        return poptorch.identity_loss(loss, "mean")


class AnnealedLangevin(nn.Module):
    def __init__(self, network, sigmas, steps, rate):
        super().__init__()
        self.network, self.sigmas, self.steps, self.rate = network, sigmas, steps, rate

    def forward(self, x):
        for sigma in self.sigmas:
            level = torch.full((x.shape[0], 1), sigma)
            alpha = self.rate * (sigma / self.sigmas[-1]) ** 2

            def body(x, level, alpha=alpha):
                noise = torch.randn(x.shape)
                return x + 0.5 * alpha * self.network(x, level) + alpha**0.5 * noise, level

            x, _ = poptorch.for_loop(self.steps, body, [x, level])
        return x


def mixture(count):
    centres = torch.tensor([[-2.0, 0.0], [2.0, 0.0]])
    return centres[torch.randint(2, (count,))] + 0.2 * torch.randn(count, 2)


def main():
    args = SimpleNamespace(calls=150, langevin_steps=30, samples=128)
    torch.manual_seed(0)
    sigmas = torch.logspace(0.5, -0.7, 6).tolist()
    network = ScoreNetwork()

    options = poptorch.Options().randomSeed(0)
    options.deviceIterations(4)
    options.outputMode(poptorch.OutputMode.All)
    training = poptorch.trainingModel(
        ScoreMatching(network), options, optimizer=poptorch.optim.AdamW(network.parameters(), lr=5e-3)
    )
    losses = []
    for _ in range(args.calls):
        sigma = torch.tensor(sigmas)[torch.randint(len(sigmas), (4 * 128, 1))]
        losses.append(training(mixture(4 * 128), sigma).mean().item())
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    training.destroy()

    sampler = poptorch.inferenceModel(
        AnnealedLangevin(network, sigmas, args.langevin_steps, rate=0.008), poptorch.Options().randomSeed(1)
    )
    samples = sampler(4 * torch.randn(args.samples, 2))
    distance = torch.minimum(
        (samples - torch.tensor([-2.0, 0.0])).norm(dim=1), (samples - torch.tensor([2.0, 0.0])).norm(dim=1)
    )
    left = (samples[:, 0] < 0).float().mean().item()
    print(f"median distance to the nearer centre {distance.median():.2f}; {left:.0%} on the left")
    assert losses[-1] < 0.8 * losses[0]
    assert distance.median() < 0.8
    assert 0.2 < left < 0.8


if __name__ == "__main__":
    main()
