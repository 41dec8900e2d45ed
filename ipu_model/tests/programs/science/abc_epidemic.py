"""Approximate Bayesian computation for an epidemic model: thousands of parallel simulations."""

import numpy as np
import torch
from torch import nn

import poptorch

PRIORS = {"beta": (0.0, 1.0), "gamma": (0.0, 0.5), "recovery": (0.0, 0.2)}
TRUE, POPULATION, SAMPLES, TARGET, TOLERANCE, REPLICAS, DAYS = (0.3, 0.2, 0.05), 1e5, 1000, 40, 400.0, 2, 12


class EpidemicSimulator(nn.Module):
    """Draws parameters from the priors, runs noisy days, and returns the distance to the observed counts."""

    def __init__(self, observed):
        super().__init__()
        self.register_buffer("observed", observed)
        self.register_buffer("lower", torch.tensor([low for low, _ in PRIORS.values()]))
        self.register_buffer("upper", torch.tensor([high for _, high in PRIORS.values()]))

    @staticmethod
    def draw(rate):
        """A Poisson number, approximated by a normal one as usual for large counts."""
        return torch.clamp(torch.floor(rate + torch.sqrt(rate) * torch.randn(rate.shape)), min=0.0)

    def forward(self):
        parameters = self.lower + (self.upper - self.lower) * torch.rand(SAMPLES, len(PRIORS))
        beta, gamma, recovery = parameters.unbind(dim=1)
        infected, recovered = (self.observed[0, i].expand(SAMPLES) for i in range(2))
        susceptible, exposed = POPULATION - infected - recovered, 2 * infected
        distance = torch.zeros(SAMPLES)
        for day in range(1, DAYS):
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


def observe(beta, gamma, recovery):
    """The mean of the model with known parameters plays the part of reported cases."""
    s, e, i, r, rows = POPULATION - 310.0, 200.0, 100.0, 10.0, []
    for _ in range(DAYS):
        rows.append([i, r])
        new_e, new_i, new_r = beta * s * (i + e) / POPULATION, gamma * e, recovery * i
        s, e, i, r = s - new_e, e + new_e - new_i, i + new_i - new_r, r + new_r
    return torch.tensor(rows)


opts = poptorch.Options().deviceIterations(2).replicationFactor(REPLICAS).randomSeed(5)
opts.outputMode(poptorch.OutputMode.All)
model = poptorch.inferenceModel(EpidemicSimulator(observe(*TRUE)), opts)
accepted, runs = [], 0
while sum(map(len, accepted)) < TARGET and runs < 40:
    distances, parameters = model()
    keep = (distances <= TOLERANCE).nonzero(as_tuple=True)[0]
    accepted.append(np.column_stack([parameters[keep].numpy(), distances[keep].numpy()]))
    runs += 1
table = np.concatenate(accepted)
print(f"{len(table)} of {runs * len(distances)} accepted", dict(zip(PRIORS, table.mean(axis=0))))
assert len(distances) == 2 * REPLICAS * SAMPLES
assert len(table) >= TARGET
assert (table[:, 3] <= TOLERANCE).all()
assert len(np.unique(table[:, 0])) == len(table)
assert abs(table[:, 2].mean() - TRUE[2]) < 0.03
