"""A small training framework of one's own: callbacks, metrics, early stopping, checkpoints, resource handling."""

import abc
import contextlib
import logging
import os
import tempfile
import time
import weakref
from collections import defaultdict

import torch

import poptorch

poptorch.logger.setLevel(logging.WARNING)
logger = logging.getLogger("framework")


class Callback(abc.ABC):
    def on_fit_start(self, trainer): ...

    def on_epoch_end(self, trainer, metrics): ...

    def on_fit_end(self, trainer): ...


class EarlyStopping(Callback):
    def __init__(self, metric, patience=2):
        self.metric, self.patience, self.best, self.waited = metric, patience, None, 0

    def on_epoch_end(self, trainer, metrics):
        value = metrics[self.metric]
        if self.best is None or value < self.best - 1e-3:
            self.best, self.waited = value, 0
        else:
            self.waited += 1
            trainer.should_stop |= self.waited >= self.patience


class Checkpoint(Callback):
    def __init__(self, folder):
        self.folder, self.paths = folder, []

    def on_epoch_end(self, trainer, metrics):
        path = os.path.join(self.folder, f"epoch{trainer.epoch}.pt")
        torch.save({"state_dict": trainer.training.state_dict(), "metrics": dict(metrics)}, path)
        self.paths.append(path)


class Throughput(Callback):
    def on_fit_start(self, trainer):
        self.start = time.perf_counter()

    def on_epoch_end(self, trainer, metrics):
        latency = trainer.training.getLatency()
        metrics["latency"] = latency[2]
        metrics["counters"] = len(trainer.training.getPerfCounters())


class Trainer:
    def __init__(self, model, optimizer, train_options, valid_options, callbacks=()):
        self.model, self.callbacks = model, list(callbacks)
        self.optimizer = optimizer
        self.training = poptorch.trainingModel(model, train_options, optimizer)
        self.validation = poptorch.inferenceModel(model, valid_options)
        self.should_stop, self.epoch = False, 0
        weakref.finalize(self, logger.info, "trainer collected")

    @contextlib.contextmanager
    def attached(self, executor):
        if executor.isCompiled() and not executor.isAttachedToDevice():
            executor.attachToDevice()
        try:
            yield executor
        finally:
            if executor.isCompiled() and executor.isAttachedToDevice():
                executor.detachFromDevice()

    def call(self, event, *args):
        for callback in self.callbacks:
            getattr(callback, event)(self, *args)

    def run(self, executor, loader):
        sums = defaultdict(float)
        for batch in loader:
            for name, value in executor(*batch).items():
                sums[name] += value.float().mean().item()
        return {name: value / len(loader) for name, value in sums.items()}

    def fit(self, train, valid, epochs):
        self.call("on_fit_start")
        for self.epoch in range(epochs):
            self.model.train()
            with self.attached(self.training) as executor:
                metrics = {f"train_{k}": v for k, v in self.run(executor, train).items()}
            self.model.eval()
            with self.attached(self.validation) as executor:
                metrics.update({f"valid_{k}": v for k, v in self.run(executor, valid).items()})
            self.call("on_epoch_end", metrics)
            print(self.epoch, {k: round(v, 4) for k, v in metrics.items()})
            if self.should_stop:
                break
        self.call("on_fit_end")
        return metrics

    def close(self):
        self.training.destroy()
        self.validation.destroy()


class Net(torch.nn.Module):
    def __init__(self, features):
        super().__init__()
        self.features = features
        self.head = torch.nn.Linear(8, 2)

    def forward(self, x, y):
        logits = self.head(self.features(x))
        loss = torch.nn.functional.cross_entropy(logits, y)
        return {"loss": poptorch.identity_loss(loss, "none"), "accuracy": (logits.argmax(1) == y).float().mean()}


def moons(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (n,), generator=g)
    angle = 3.1416 * torch.rand(n, generator=g)
    x = torch.stack([angle.cos() + y, (1 - 2 * y) * angle.sin() + 0.5 * y], 1) + 0.05 * torch.randn(n, 2, generator=g)
    return torch.utils.data.TensorDataset(x, y)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    torch.manual_seed(0)
    net = Net(torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Softplus(), torch.nn.Linear(16, 8), torch.nn.Tanh()))
    train_options = poptorch.Options().deviceIterations(4).outputMode(poptorch.OutputMode.All)
    valid_options = poptorch.Options().deviceIterations(2)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Checkpoint(folder)
        trainer = Trainer(
            net,
            poptorch.optim.Adam(net.parameters(), lr=0.03),
            train_options,
            valid_options,
            [EarlyStopping("valid_loss", patience=8), checkpoint, Throughput()],
        )
        train = poptorch.DataLoader(train_options, moons(512, 0), batch_size=16, shuffle=True)
        valid = poptorch.DataLoader(valid_options, moons(128, 1), batch_size=16)
        metrics = trainer.fit(train, valid, epochs=20)
        trainer.close()
        saved = torch.load(checkpoint.paths[-1])
        net.load_state_dict(saved["state_dict"])
    assert metrics["valid_accuracy"] > 0.9
    assert metrics["latency"] >= 0 and metrics["counters"] > 0
