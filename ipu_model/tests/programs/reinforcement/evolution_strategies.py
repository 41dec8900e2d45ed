"""Evolution strategies: a population of small controllers is evaluated at once by a loop on the device."""

import torch
from program_kit import on_ipu

import poptorch

POPULATION, STEPS, HIDDEN, SIGMA = 32, 30, 6, 0.3


def cost_of(genomes, angles):
    """Balance as many pendulums as there are controllers."""
    population = genomes.shape[0]
    w1 = genomes[:, : 3 * HIDDEN].view(population, 3, HIDDEN)
    w2 = genomes[:, 3 * HIDDEN :].view(population, HIDDEN, 1)

    def step(angle, speed, cost):
        features = torch.stack([torch.sin(angle), torch.cos(angle), speed], dim=1).unsqueeze(1)
        torque = 6 * torch.tanh(torch.bmm(torch.tanh(torch.bmm(features, w1)), w2)).flatten()
        speed = speed * 0.98 + (3 * torch.sin(angle) + torque) * 0.1
        angle = angle + 0.1 * speed
        return angle, speed, cost + (1 - torch.cos(angle)) + 0.01 * speed * speed

    state = [angles, torch.zeros(population), torch.zeros(population)]
    return poptorch.for_loop(STEPS, step, state)[2] / STEPS


torch.manual_seed(0)
opts = poptorch.Options().replicationFactor(2).outputMode(poptorch.OutputMode.All)
evaluate = on_ipu(cost_of, opts)
mean, history = torch.zeros(4 * HIDDEN), []
for _ in range(40):
    half = torch.randn(POPULATION // 2, 4 * HIDDEN)
    noise = torch.cat([half, -half])
    cost = evaluate(mean + SIGMA * noise, 0.5 * torch.randn(POPULATION // 2).repeat(2))
    assert cost.shape == (POPULATION,)
    ranks = cost.argsort().argsort().float() / (POPULATION - 1) - 0.5
    mean -= (ranks[:, None] * noise).mean(dim=0) / SIGMA
    history.append(cost.mean().item())
assert sum(history[-5:]) < 0.8 * sum(history[:5]), history
