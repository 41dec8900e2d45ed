"""A neural ordinary differential equation for a spiral: Runge-Kutta steps, unrolled to train, looped to predict."""

import torch
from program_kit import Over, check_close, check_learned, train
from torch import nn

import poptorch

STEP, LENGTH, SEGMENT = 0.05, 200, 5


def rk4_step(f, y):
    k1 = f(y**3)
    k2 = f((y + STEP / 2 * k1) ** 3)
    k3 = f((y + STEP / 2 * k2) ** 3)
    k4 = f((y + STEP * k3) ** 3)
    return y + STEP / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def simulate(f, y, count):
    states = [y]
    for _ in range(count):
        states.append(rk4_step(f, states[-1]))
    return torch.stack(states)


class NeuralODE(Over):
    def forward(self, y, trajectory):
        states = []
        for _ in range(SEGMENT):
            y = poptorch.recomputationCheckpoint(rk4_step(self.network, y))
            states.append(y)
        return y, nn.L1Loss()(torch.stack(states, dim=1), trajectory)


class Integrator(Over):
    def forward(self, y):
        return poptorch.for_loop(20, lambda y: (rk4_step(self.network, y),), [y])[0]


torch.manual_seed(0)
spiral = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]])
trajectory = simulate(lambda cubes: cubes @ spiral, torch.tensor([2.0, 0.0]), LENGTH)


def segments(count=4 * 16):
    start = torch.randint(LENGTH - SEGMENT, (count, 1))
    return trajectory[start[:, 0]], trajectory[start + torch.arange(1, SEGMENT + 1)]


dynamics = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
opts = poptorch.Options().deviceIterations(4)
training = poptorch.trainingModel(NeuralODE(dynamics), opts, poptorch.optim.RMSprop(dynamics.parameters(), lr=3e-3))
check_learned(train(training, (segments() for _ in range(80))), 0.6, count=5)
training.detachFromDevice()
end = poptorch.inferenceModel(Integrator(dynamics))(trajectory[:8])
check_close(end, simulate(dynamics, trajectory[:8], 20)[-1], 1e-3)
