"""Hamiltonian Monte Carlo for Bayesian logistic regression: leapfrog steps and acceptance on the device."""

import torch
import torch.nn as nn

import poptorch

CHAINS, DIMENSION, DATA, LEAPFROG, STEP = 16, 3, 60, 8, 0.06


class HMC(nn.Module):
    """One transition of every chain. The state lives in buffers, so that a call runs many without the host."""

    def __init__(self, features, labels, start):
        super().__init__()
        self.register_buffer("features", features)
        self.register_buffer("labels", labels)
        self.register_buffer("position", start)

    def potential(self, weights):
        logits = weights @ self.features.t()
        log_likelihood = (self.labels * logits - nn.functional.softplus(logits)).sum(dim=1)
        return 0.5 * (weights**2).sum(dim=1) - log_likelihood

    def gradient(self, weights):
        logits = weights @ self.features.t()
        return weights - (self.labels - torch.sigmoid(logits)) @ self.features

    def forward(self):
        momentum = torch.randn(CHAINS, DIMENSION)
        q, p = self.position, momentum - 0.5 * STEP * self.gradient(self.position)
        for i in range(LEAPFROG):
            q = q + STEP * p
            scale = 0.5 if i == LEAPFROG - 1 else 1.0
            p = p - scale * STEP * self.gradient(q)
        before = self.potential(self.position) + 0.5 * (momentum**2).sum(dim=1)
        after = self.potential(q) + 0.5 * (p**2).sum(dim=1)
        accept = torch.rand(CHAINS) < torch.exp(torch.clamp(before - after, max=0.0))
        self.position.copy_(torch.where(accept.unsqueeze(1), q, self.position))
        return self.position.clone(), accept.float().mean()


def reference_posterior(features, labels):
    """Importance sampling from the prior, in float64 on the host."""
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(200_000, DIMENSION, generator=generator, dtype=torch.float64)
    logits = weights @ features.double().t()
    log_weight = (labels * logits - nn.functional.softplus(logits)).sum(dim=1)
    return torch.softmax(log_weight, dim=0) @ weights


def main():
    torch.manual_seed(0)
    features = torch.randn(DATA, DIMENSION)
    labels = (torch.rand(DATA) < torch.sigmoid(features @ torch.tensor([1.0, -0.7, 0.3]))).float()
    sampler = HMC(features, labels, torch.zeros(CHAINS, DIMENSION))
    opts = poptorch.Options().deviceIterations(25)
    opts.randomSeed(17)
    opts.outputMode(poptorch.OutputMode.All)
    opts.updatableNamedBuffers(["position"])
    run = poptorch.inferenceModel(sampler, opts)
    draws, rates = [], []
    for call in range(12):
        positions, accepted = run()
        rates.append(accepted.mean().item())
        if call >= 2:
            draws.append(positions.view(25, CHAINS, DIMENSION))
    draws = torch.cat(draws)
    within, between = draws.var(dim=0).mean(dim=0), draws.mean(dim=0).var(dim=0)
    r_hat = torch.sqrt(1 + between / within)
    mean, expected = draws.mean(dim=(0, 1)), reference_posterior(features, labels)
    print(f"acceptance {sum(rates) / len(rates):.2f}, R-hat {r_hat.tolist()}")
    print(f"posterior mean {mean.tolist()}, reference {expected.tolist()}")
    run.copyWeightsToHost()
    torch.testing.assert_close(sampler.position, draws[-1])
    assert sum(rates) / len(rates) > 0.6
    assert r_hat.max() < 1.1
    torch.testing.assert_close(mean, expected.float(), atol=0.1, rtol=0)


if __name__ == "__main__":
    main()
