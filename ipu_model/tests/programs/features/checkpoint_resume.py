"""Stop a run, save model, optimiser and scheduler, resume in new objects: the result is the uninterrupted run's."""

import torch
from program_kit import WithLoss, check_close
from torch import nn

import poptorch

STEPS, STOP_AT = 12, 6


class Counting(WithLoss):
    def __init__(self, network, loss):
        super().__init__(network, loss)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x, target):
        self.seen += 1.0
        return super().forward(x, target)


def batch(step):
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
    return x, x.sum(1, keepdim=True)


class Run:
    def __init__(self):
        torch.manual_seed(0)
        layers = nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1)
        self.model = Counting(nn.Sequential(*layers), nn.functional.mse_loss)
        self.optimizer = poptorch.optim.Adam(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.95)
        self.parts = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        opts = poptorch.Options().randomSeed(3)
        opts.Training.gradientAccumulation(2)
        self.training = poptorch.trainingModel(self.model, opts, self.optimizer)
        self.step = 0

    def run(self, until):
        for self.step in range(self.step, until):
            _, loss = self.training(*batch(self.step))
            self.scheduler.step()
            self.training.setOptimizer(self.optimizer)
        self.step = until
        return loss

    def save(self, path):
        states = {name: part.state_dict() for name, part in self.parts.items()}
        torch.save({"step": self.step, "rng": self.training.rng_state, **states}, path)

    def load(self, path):
        checkpoint = torch.load(path)
        self.step = checkpoint["step"]
        for name, part in self.parts.items():
            part.load_state_dict(checkpoint[name])
        self.training.compile(*batch(0))
        self.training.copyWeightsToDevice()
        self.training.rng_state = checkpoint["rng"]


whole = Run()
whole_loss = whole.run(STEPS)
expected = {name: value.clone() for name, value in whole.model.state_dict().items()}
whole.training.destroy()

first = Run()
first.run(STOP_AT)
first.save("checkpoint.pt")
first.training.destroy()
second = Run()
second.load("checkpoint.pt")
check_close(second.run(STEPS), whole_loss, 1e-5)
check_close(dict(second.model.state_dict()), expected, 1e-5)
state = second.optimizer.state_dict()
assert state["param_groups"] or state["state"]
