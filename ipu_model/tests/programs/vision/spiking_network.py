"""Leaky integrate-and-fire neurons with a surrogate gradient; hidden states are plain attributes, as in snnTorch."""

import torch
from program_kit import accuracy, check_learned, inferred, train
from torch import nn

import poptorch

STEPS, CLASSES, BATCH = 8, 3, 16


class Leaky(nn.Module):
    """The membrane potential lives in `self.mem` between time steps; `reset` makes it None."""

    def __init__(self, beta, threshold=1.0, slope=5.0):
        super().__init__()
        self.beta, self.threshold, self.slope = nn.Parameter(torch.tensor(beta)), threshold, slope
        self.mem = None

    def reset(self):
        self.mem = None

    def forward(self, current):
        if self.mem is None:
            self.mem = torch.zeros_like(current)
        reset = (self.mem.detach() > self.threshold).to(current.dtype)
        self.mem = torch.clamp(self.beta, 0, 1) * self.mem + current - reset * self.threshold
        distance = self.mem - self.threshold
        hard = (distance > 0).to(current.dtype)
        soft = distance / (1 + self.slope * torch.abs(distance))
        return (hard - soft).detach() + soft


class SpikingNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(25, 32), Leaky(0.9), nn.Linear(32, CLASSES), Leaky(0.95))

    def forward(self, frames, labels=None):
        for module in self.modules():
            if isinstance(module, Leaky):
                module.reset()
        rate = torch.stack([self.layers(frames[:, t].flatten(1)) for t in range(STEPS)]).sum(dim=0)
        return rate if labels is None else (rate, nn.functional.cross_entropy(rate, labels))


def event_data(count):
    """A bright row moves down (0), up (1) or stays (2)."""
    labels = torch.arange(count) % CLASSES
    frames = 0.2 * torch.rand(count, STEPS, 5, 5)
    for i, label in enumerate(labels.tolist()):
        start = int(torch.randint(5, ()))
        for t in range(STEPS):
            frames[i, t, (start + (t, -t, 0)[label]) % 5] += 1 + (label == 2) * 0.5
    return frames, labels


torch.manual_seed(0)
model = SpikingNet()
opts = poptorch.Options().deviceIterations(3)
dataset = torch.utils.data.TensorDataset(*event_data(480))
loader = poptorch.DataLoader(opts, dataset, batch_size=BATCH, shuffle=True)
optimizer = poptorch.optim.Adam(model.parameters(), lr=0.01, betas=(0.9, 0.99))
training_model = poptorch.trainingModel(model, opts, optimizer)
check_learned(train(training_model, loader, epochs=8), 1)
training_model.destroy()
frames, labels = event_data(60)
rate = inferred(model, frames, tolerance=1e-3)
assert torch.equal(rate, rate.round())
assert accuracy(rate, labels) > 0.5
