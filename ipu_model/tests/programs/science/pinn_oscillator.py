"""A physics-informed network for a damped oscillator; derivatives are propagated forward with the values."""

import itertools

import torch
import torch.nn as nn

import poptorch

DAMPING, STIFFNESS, HORIZON = 0.4, 4.0, 4.0


class Jet(nn.Module):
    """A tanh network that returns the value and its first two time derivatives."""

    def __init__(self, hidden=32, depth=2):
        super().__init__()
        widths = [1] + [hidden] * depth
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.out = nn.Linear(hidden, 1)

    def forward(self, t):
        u, du, ddu = t, torch.ones_like(t), torch.zeros_like(t)
        for layer in self.layers:
            u, du, ddu = layer(u), du @ layer.weight.t(), ddu @ layer.weight.t()
            y = torch.tanh(u)
            slope = 1 - y**2
            u, du, ddu = y, slope * du, slope * ddu - 2 * y * slope * du**2
        return self.out(u), du @ self.out.weight.T, ddu @ self.out.weight.T


class PhysicsLoss(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network
        self.mse = nn.MSELoss()

    def forward(self, collocation, start):
        u, du, ddu = self.network(collocation / HORIZON)
        du, ddu = du / HORIZON, ddu / HORIZON**2
        residual = ddu + DAMPING * du + STIFFNESS * u
        u0, du0, _ = self.network(start)
        initial = self.mse(u0, torch.ones_like(u0)) + self.mse(du0 / HORIZON, torch.zeros_like(du0))
        physics = (residual**2).mean()
        return physics, initial, poptorch.identity_loss(0.05 * physics + initial, reduction="none")


def exact(t):
    omega = (STIFFNESS - DAMPING**2 / 4) ** 0.5
    return torch.exp(-DAMPING / 2 * t) * (torch.cos(omega * t) + DAMPING / (2 * omega) * torch.sin(omega * t))


def main():
    torch.manual_seed(0)
    network = Jet()
    opts = poptorch.Options()
    opts.deviceIterations(20)
    opts.outputMode(poptorch.OutputMode.Final)
    optimizer = poptorch.optim.Adam(network.parameters(), lr=5e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.97)
    trainer = poptorch.trainingModel(PhysicsLoss(network), opts, optimizer)
    start = torch.zeros(20, 1)
    history = []
    for call in range(80):
        collocation = torch.rand(20 * 64, 1) * HORIZON
        physics, initial, loss = trainer(collocation, start)
        history.append(loss.item())
        scheduler.step()
        trainer.setOptimizer(optimizer)
        if call % 20 == 19:
            print(f"call {call + 1}: physics {physics.item():.4f} initial {initial.item():.5f} loss {loss.item():.5f}")
    trainer.copyWeightsToHost()

    solve = poptorch.inferenceModel(network)
    t = torch.linspace(0, HORIZON, 100).unsqueeze(1)
    u, du, _ = solve(t / HORIZON)
    error = (u - exact(t)).abs().max().item()
    print(f"largest error against the closed form {error:.3f}")
    assert u.shape == du.shape == (100, 1)
    assert history[-1] < 0.2 * history[0]
    assert error < 0.35


if __name__ == "__main__":
    main()
