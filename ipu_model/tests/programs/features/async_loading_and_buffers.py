"""Feed the device from worker processes, with buffers that the model updates and options read from a file."""

import tempfile
from functools import partial

import numpy as np
import torch
from program_kit import Items, WithLoss, stacked, train
from torch import nn

import poptorch


def image(index, generator):
    return np.random.RandomState(index).rand(3, 8, 8).astype(np.float32) + index % 2, np.int64(index % 2)


def worker_init(worker_id, base):
    np.random.seed(base + worker_id)


class RunningStatistics(nn.Module):
    """Keeps its own moving average, in buffers that change on the device."""

    def __init__(self, channels):
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        current = x.mean((0, 2, 3))
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * current.detach())
            self.count += 1.0
        return x - self.mean.view(1, -1, 1, 1)


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
        Items(128, image),
        batch_size=4,
        shuffle=True,
        num_workers=2,
        drop_last=True,
        worker_init_fn=partial(worker_init, base=1),
        mode=poptorch.DataLoaderMode.Async,
        async_options={"early_preload": True, "buffer_size": 4, "load_indefinitely": True},
    )
    statistics = RunningStatistics(3)
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(6), nn.Flatten(), nn.Linear(8, 2)
    model = WithLoss(nn.Sequential(statistics, *layers), nn.functional.cross_entropy)
    training = poptorch.trainingModel(model, opts, poptorch.optim.Adam(model.parameters(), lr=0.01))
    assert len(train(training, loader, epochs=2)) == 2 * (128 // 32)
    loader.terminate()
    training.copyWeightsToHost()
    # One forward pass per device iteration and micro-batch.
    assert statistics.count.item() == 8 * 8, statistics.count
    assert (statistics.mean > 0.8).all()
    training.destroy()

    dataset = torch.utils.data.TensorDataset(*stacked(Items(16, image)[i] for i in range(16)))
    accessor = poptorch.AsynchronousDataAccessor(dataset, sharing_strategy=poptorch.SharingStrategy.FileSystem)
    inference = poptorch.inferenceModel(model.eval())
    right = sum(inference(image.unsqueeze(0)).argmax().item() == int(label) for image, label in accessor)
    accessor.terminate()
    assert right >= 14


if __name__ == "__main__":
    main()
