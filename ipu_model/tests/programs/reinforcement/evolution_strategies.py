"""Evolution strategies: a population of small controllers is evaluated at once by a loop on the device."""

from types import SimpleNamespace

import torch
import torch.nn as nn

import poptorch


class PendulumPopulation(nn.Module):
    """Each row of `genomes` is the weights of one controller; returns the cost of each after `steps` steps."""

    def __init__(self, steps, hidden=6):
        super().__init__()
        self.steps, self.hidden = steps, hidden
        self.genome_length = 3 * hidden + hidden

    def forward(self, genomes, angles):
        population = genomes.shape[0]
        w1 = genomes[:, : 3 * self.hidden].view(population, 3, self.hidden)
        w2 = genomes[:, 3 * self.hidden :].view(population, self.hidden, 1)

        def step(angle, speed, cost):
            features = torch.stack([torch.sin(angle), torch.cos(angle), speed], dim=1).unsqueeze(1)
            torque = 6 * torch.tanh(torch.bmm(torch.tanh(torch.bmm(features, w1)), w2)).flatten()
            speed = speed * 0.98 + (3 * torch.sin(angle) + torque) * 0.1
            angle = angle + 0.1 * speed
            cost = cost + (1 - torch.cos(angle)) + 0.01 * speed * speed
            return angle, speed, cost

        state = [angles, torch.zeros(population), torch.zeros(population)]
        _, _, cost = poptorch.for_loop(self.steps, step, state)
        return cost / self.steps


def main():
    args = SimpleNamespace(population=64, generations=30, sigma=0.3, lr=2.0)
    torch.manual_seed(0)
    simulator = PendulumPopulation(steps=30)
    opts = poptorch.Options()
    opts.replicationFactor(2)
    opts.outputMode(poptorch.OutputMode.All)
    evaluate = poptorch.inferenceModel(simulator, opts)
    mean = torch.zeros(simulator.genome_length)
    history = []
    for generation in range(args.generations):
        half = torch.randn(args.population // 2, simulator.genome_length)
        noise = torch.cat([half, -half])
        angles = 0.5 * torch.randn(args.population // 2).repeat(2)
        cost = evaluate(mean + args.sigma * noise, angles)
        assert cost.shape == (args.population,)
        ranks = cost.argsort().argsort().float() / (args.population - 1) - 0.5
        mean -= args.lr / args.sigma * (ranks[:, None] * noise).mean(dim=0)
        history.append(cost.mean().item())
        if generation % 10 == 9:
            print(f"generation {generation + 1}: mean cost {history[-1]:.3f}, best {cost.min().item():.3f}")
    assert sum(history[-5:]) < 0.8 * sum(history[:5]), history


if __name__ == "__main__":
    main()
