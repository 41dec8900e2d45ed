"""A neural ordinary differential equation for a spiral: Runge-Kutta steps, unrolled to train, looped to predict."""

import argparse

import torch
import torch.nn as nn

import poptorch


class Dynamics(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, 2))
        for layer in self.net:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.1)
                nn.init.zeros_(layer.bias)

    def forward(self, y):
        return self.net(y**3)


def rk4_step(f, y, h):
    k1 = f(y)
    k2 = f(y + h / 2 * k1)
    k3 = f(y + h / 2 * k2)
    k4 = f(y + h * k3)
    return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


class NeuralODE(nn.Module):
    def __init__(self, dynamics, step, segments):
        super().__init__()
        self.dynamics, self.step, self.segments = dynamics, step, segments
        self.l1 = nn.L1Loss()

    def forward(self, y0, trajectory):
        y, states = y0, []
        for _ in range(self.segments):
            y = poptorch.recomputationCheckpoint(rk4_step(self.dynamics, y, self.step))
            states.append(y)
        return torch.stack(states, dim=1), self.l1(torch.stack(states, dim=1), trajectory)


class Integrator(nn.Module):
    """Runs the whole trajectory in a loop on the device and returns its end."""

    def __init__(self, dynamics, step, count):
        super().__init__()
        self.dynamics, self.step, self.count = dynamics, step, count

    def forward(self, y0):
        def body(y):
            return rk4_step(self.dynamics, y, self.step)

        return poptorch.for_loop(self.count, body, [y0])[0]


def true_dynamics(y):
    return y**3 @ torch.tensor([[-0.1, 2.0], [-2.0, -0.1]])


def simulate(y, step, count, f):
    states = [y]
    for _ in range(count):
        states.append(rk4_step(f, states[-1], step))
    return torch.stack(states)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step", type=float, default=0.025)
    parser.add_argument("--length", type=int, default=400)
    parser.add_argument("--segment", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--calls", type=int, default=60)
    args = parser.parse_args()
    torch.manual_seed(0)
    trajectory = simulate(torch.tensor([2.0, 0.0]), args.step, args.length, true_dynamics)

    dynamics = Dynamics()
    opts = poptorch.Options().deviceIterations(4)
    opts.Training.gradientAccumulation(1)
    optimizer = poptorch.optim.RMSprop(dynamics.parameters(), lr=3e-3)
    model = poptorch.trainingModel(NeuralODE(dynamics, args.step, args.segment), opts, optimizer)
    losses = []
    for _ in range(args.calls):
        start = torch.randint(args.length - args.segment, (4 * args.batch_size,))
        targets = torch.stack([trajectory[start + i + 1] for i in range(args.segment)], dim=1)
        predicted, loss = model(trajectory[start], targets)
        losses.append(loss.item())
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    model.detachFromDevice()

    integrator = poptorch.inferenceModel(Integrator(dynamics, args.step, 20))
    end = integrator(trajectory[:8])
    with torch.no_grad():
        expected = simulate(trajectory[:8], args.step, 20, dynamics)[-1]
    torch.testing.assert_close(end, expected, rtol=1e-3, atol=1e-4)
    assert predicted.shape == (args.batch_size, args.segment, 2)
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])


if __name__ == "__main__":
    main()
