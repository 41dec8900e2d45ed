"""Approximate Bayesian computation for an epidemic model: thousands of parallel simulations."""

import time
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn as nn

import poptorch

PRIORS = {"beta": (0.0, 1.0), "gamma": (0.0, 0.5), "recovery": (0.0, 0.2)}
POPULATION = 1e5


class EpidemicSimulator(nn.Module):
    """Draws parameters from the priors, runs noisy days, and returns the distance to the observed counts."""

    def __init__(self, observed, samples):
        super().__init__()
        self.samples, self.days = samples, observed.shape[0]
        self.register_buffer("observed", observed)
        self.register_buffer("lower", torch.tensor([low for low, _ in PRIORS.values()]))
        self.register_buffer("upper", torch.tensor([high for _, high in PRIORS.values()]))

    @staticmethod
    def draw(rate):
        """A Poisson number, approximated by a normal one as usual for large counts."""
        return torch.clamp(torch.floor(rate + torch.sqrt(rate) * torch.randn(rate.shape)), min=0.0)

    def forward(self):
        parameters = self.lower + (self.upper - self.lower) * torch.rand(self.samples, len(PRIORS))
        beta, gamma, recovery = parameters.unbind(dim=1)
        infected = self.observed[0, 0].expand(self.samples)
        recovered = self.observed[0, 1].expand(self.samples)
        susceptible = POPULATION - infected - recovered
        exposed = 2 * infected
        distance = torch.zeros(self.samples)
        for day in range(1, self.days):
            new_exposed = torch.minimum(self.draw(beta * susceptible * (infected + exposed) / POPULATION), susceptible)
            new_infected = torch.minimum(self.draw(gamma * exposed), exposed)
            new_recovered = torch.minimum(self.draw(recovery * infected), infected)
            susceptible = susceptible - new_exposed
            exposed = exposed + new_exposed - new_infected
            infected = infected + new_infected - new_recovered
            recovered = recovered + new_recovered
            simulated = torch.stack([infected, recovered], dim=1)
            distance = distance + ((simulated - self.observed[day]) ** 2).sum(dim=1)
        return torch.sqrt(distance), parameters


def observe(true_values, days=12):
    """The mean of the model with known parameters plays the part of reported cases."""
    beta, gamma, recovery = true_values
    s, e, i, r, rows = POPULATION - 310.0, 200.0, 100.0, 10.0, []
    for _ in range(days):
        rows.append([i, r])
        new_e, new_i, new_r = beta * s * (i + e) / POPULATION, gamma * e, recovery * i
        s, e, i, r = s - new_e, e + new_e - new_i, i + new_i - new_r, r + new_r
    return torch.tensor(rows)


def main():
    args = SimpleNamespace(
        n_samples_per_batch=1000, samples_target=40, tolerance=400.0, replication_factor=2, max_n_runs=40
    )
    true_values = (0.3, 0.2, 0.05)
    simulator = EpidemicSimulator(observe(true_values), args.n_samples_per_batch)

    opts = poptorch.Options()
    opts.deviceIterations(2)
    opts.replicationFactor(args.replication_factor)
    opts.randomSeed(5)
    opts.outputMode(poptorch.OutputMode.All)
    model = poptorch.inferenceModel(simulator, opts)
    accepted, runs, start = [], 0, time.time()
    while sum(map(len, accepted)) < args.samples_target and runs < args.max_n_runs:
        distances, parameters = model()
        keep = (distances <= args.tolerance).nonzero(as_tuple=True)[0]
        accepted.append(np.column_stack([parameters[keep].numpy(), distances[keep].numpy()]))
        runs += 1
    table = np.concatenate(accepted)
    simulated = runs * len(distances)
    print(f"{len(table)} of {simulated} accepted in {runs} runs, {time.time() - start:.1f} s")
    print(dict(zip(PRIORS, table.mean(axis=0))))
    assert len(distances) == 2 * args.replication_factor * args.n_samples_per_batch
    assert len(table) >= args.samples_target
    assert (table[:, 3] <= args.tolerance).all()
    assert len(np.unique(table[:, 0])) == len(table)
    assert abs(table[:, 2].mean() - true_values[2]) < 0.03


if __name__ == "__main__":
    main()
