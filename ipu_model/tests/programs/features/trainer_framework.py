"""A small training framework of one's own: callbacks, metrics, early stopping, checkpoints, resource handling."""

import contextlib
import logging
import weakref
from collections import defaultdict

import torch
from program_kit import Over
from torch import nn

import poptorch

poptorch.logger.setLevel(logging.WARNING)


class EarlyStopping:
    def __init__(self, metric, patience):
        self.metric, self.patience, self.best, self.waited = metric, patience, float("inf"), 0

    def __call__(self, trainer, metrics):
        self.waited = 0 if metrics[self.metric] < self.best - 1e-3 else self.waited + 1
        self.best = min(self.best, metrics[self.metric])
        trainer.should_stop |= self.waited >= self.patience


def checkpoint(trainer, metrics):
    torch.save({"state_dict": trainer.training.state_dict(), "metrics": dict(metrics)}, "last.pt")


def throughput(trainer, metrics):
    metrics["latency"] = trainer.training.getLatency()[2]
    metrics["counters"] = len(trainer.training.getPerfCounters())


@contextlib.contextmanager
def attached(executor):
    if executor.isCompiled() and not executor.isAttachedToDevice():
        executor.attachToDevice()
    yield executor
    executor.detachFromDevice()


class Trainer:
    def __init__(self, model, optimizer, train_options, valid_options, callbacks):
        self.model, self.callbacks, self.should_stop = model, callbacks, False
        self.training = poptorch.trainingModel(model, train_options, optimizer)
        self.validation = poptorch.inferenceModel(model, valid_options)
        weakref.finalize(self, print, "trainer collected")

    def run(self, executor, loader, prefix):
        sums = defaultdict(float)
        with attached(executor):
            for batch in loader:
                for name, value in executor(*batch).items():
                    sums[prefix + name] += value.float().mean().item() / len(loader)
        return sums

    def fit(self, train, valid, epochs):
        for epoch in range(epochs):
            self.model.train()
            metrics = self.run(self.training, train, "train_")
            self.model.eval()
            metrics.update(self.run(self.validation, valid, "valid_"))
            for callback in self.callbacks:
                callback(self, metrics)
            print(epoch, dict(metrics))
            if self.should_stop:
                break
        return metrics


class Net(Over):
    def forward(self, x, y):
        logits = self.network(x)
        loss = nn.functional.cross_entropy(logits, y)
        return {"loss": poptorch.identity_loss(loss, "none"), "accuracy": (logits.argmax(1) == y).float().mean()}


def moons(n):
    y, angle = torch.randint(0, 2, (n,)), 3.1416 * torch.rand(n)
    x = torch.stack([angle.cos() + y, (1 - 2 * y) * angle.sin() + 0.5 * y], 1) + 0.05 * torch.randn(n, 2)
    return torch.utils.data.TensorDataset(x, y)


torch.manual_seed(0)
net = Net(nn.Sequential(nn.Linear(2, 16), nn.Softplus(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 2)))
train_options = poptorch.Options().deviceIterations(4).outputMode(poptorch.OutputMode.All)
valid_options = poptorch.Options().deviceIterations(2)
optimizer = poptorch.optim.Adam(net.parameters(), lr=0.03)
callbacks = [EarlyStopping("valid_loss", patience=8), throughput, checkpoint]
trainer = Trainer(net, optimizer, train_options, valid_options, callbacks)
train = poptorch.DataLoader(train_options, moons(512), batch_size=16, shuffle=True)
valid = poptorch.DataLoader(valid_options, moons(128), batch_size=16)
metrics = trainer.fit(train, valid, epochs=20)
trainer.training.destroy()
trainer.validation.destroy()
net.load_state_dict(torch.load("last.pt")["state_dict"])
assert metrics["valid_accuracy"] > 0.9
assert metrics["latency"] >= 0 and metrics["counters"] > 0
