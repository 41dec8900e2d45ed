"""Denoising score matching on a mixture of Gaussians, sampled by Langevin dynamics in an on-device loop."""

import torch
from program_kit import Over, check_learned, train
from torch import nn

import poptorch

SIGMAS = torch.logspace(0.5, -0.7, 6).tolist()
CENTRES = torch.tensor([[-2.0, 0.0], [2.0, 0.0]])


class ScoreNetwork(Over):
    def forward(self, x, sigma):
        return self.network(torch.cat([x, torch.log(sigma)], dim=-1)) / sigma


class ScoreMatching(Over):
    def forward(self, x, sigma):
        noise = torch.randn(x.shape[0], 2)
        score = self.network(x + sigma * noise, sigma)
        return poptorch.identity_loss((sigma * score + noise).square().sum(dim=-1), "mean")


class AnnealedLangevin(Over):
    def forward(self, x):
        for sigma in SIGMAS:
            level = torch.full((x.shape[0], 1), sigma)
            alpha = 0.008 * (sigma / SIGMAS[-1]) ** 2

            def body(x, level, alpha=alpha):
                noise = torch.randn(x.shape)
                return x + 0.5 * alpha * self.network(x, level) + alpha**0.5 * noise, level

            x, _ = poptorch.for_loop(30, body, [x, level])
        return x


def batch(count=4 * 128):
    points = CENTRES[torch.randint(2, (count,))] + 0.2 * torch.randn(count, 2)
    return points, torch.tensor(SIGMAS)[torch.randint(len(SIGMAS), (count, 1))]


torch.manual_seed(0)
layers = nn.Linear(3, 64), nn.Softplus(), nn.Linear(64, 64), nn.Softplus(), nn.Linear(64, 2)
network = ScoreNetwork(nn.Sequential(*layers))
options = poptorch.Options().randomSeed(0).deviceIterations(4).outputMode(poptorch.OutputMode.All)
optimizer = poptorch.optim.AdamW(network.parameters(), lr=5e-3)
training = poptorch.trainingModel(ScoreMatching(network), options, optimizer=optimizer)
check_learned(train(training, (batch() for _ in range(150))), 0.8)
training.destroy()

sampler = poptorch.inferenceModel(AnnealedLangevin(network), poptorch.Options().randomSeed(1))
samples = sampler(4 * torch.randn(128, 2))
assert torch.cdist(samples, CENTRES).min(dim=1).values.median() < 0.8
assert 0.2 < (samples[:, 0] < 0).float().mean() < 0.8
