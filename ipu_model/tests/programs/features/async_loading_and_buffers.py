"""Feed the device from worker processes, with buffers that the model updates and options read from a file."""

import math
import tempfile
from functools import partial

import numpy as np
import torch
from torch import nn

import poptorch


class Images(torch.utils.data.Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        rng = np.random.RandomState(index)
        label = index % 2
        return rng.rand(3, 8, 8).astype(np.float32) + label, np.int64(label)


def worker_init(worker_id, base):
    np.random.seed(base + worker_id)


class RunningStatistics(nn.Module):
    """Keeps its own moving average, in buffers that change on the device."""

    def __init__(self, channels, momentum=0.1):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        current = x.mean((0, 2, 3))
        if self.training:
            self.mean.mul_(1 - self.momentum).add_(self.momentum * current.detach())
            self.count += 1.0
        return x - self.mean.view(1, -1, 1, 1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.statistics = RunningStatistics(3)
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten()
        )
        self.head = nn.Linear(8, 2)

    def forward(self, images, labels=None):
        logits = self.head(self.features(self.statistics(images)))
        if labels is None:
            return logits
        return logits, nn.functional.cross_entropy(logits, labels)


def main():
    torch.manual_seed(0)
    with tempfile.NamedTemporaryFile("w", suffix=".cfg") as config:
        config.write("deviceIterations(4)\nTraining.gradientAccumulation(2)\n# a comment\nrandomSeed(7)\n")
        config.flush()
        opts = poptorch.Options()
        opts.loadFromFile(config.name)
    opts.broadcastBuffers(True)

    loader = poptorch.DataLoader(
        opts,
        Images(128),
        batch_size=4,
        shuffle=True,
        num_workers=2,
        drop_last=True,
        worker_init_fn=partial(worker_init, base=1),
        mode=poptorch.DataLoaderMode.Async,
        async_options={"early_preload": True, "buffer_size": 4, "load_indefinitely": True},
    )
    model = Model()
    training = poptorch.trainingModel(model, opts, poptorch.optim.Adam(model.parameters(), lr=0.01))
    steps = 0
    for _ in range(2):
        for images, labels in loader:
            assert images.shape == (32, 3, 8, 8)
            _, loss = training(images, labels)
            steps += 1
    loader.terminate()
    assert steps == 2 * math.floor(128 / 32)
    training.copyWeightsToHost()
    # One forward pass per device iteration and micro-batch.
    assert model.statistics.count.item() == steps * 8, model.statistics.count
    assert (model.statistics.mean > 0.8).all()
    training.destroy()

    images, labels = (torch.tensor(np.stack(items)) for items in zip(*(Images(16)[i] for i in range(16))))
    dataset = torch.utils.data.TensorDataset(images, labels)
    accessor = poptorch.AsynchronousDataAccessor(dataset, sharing_strategy=poptorch.SharingStrategy.FileSystem)
    model.eval()
    inference = poptorch.inferenceModel(model)
    right = 0
    for image, label in accessor:
        right += inference(image.unsqueeze(0)).argmax().item() == int(label)
    accessor.terminate()
    print(f"last loss {loss.item():.3f}, {right} of 16 right")
    assert right >= 14


if __name__ == "__main__":
    main()
