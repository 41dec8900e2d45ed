"""Measure ways of feeding the device: synchronous, asynchronous, rebatched, and synthetic data as the upper bound."""

import time
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn as nn
from program_kit import Items

import poptorch


class ClassificationModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc, self.loss = nn.Conv2d(1, 4, 3, stride=2), nn.Linear(4 * 49, 10), nn.CrossEntropyLoss()

    def forward(self, x, labels):
        return self.loss(self.fc(torch.relu(self.conv(x)).flatten(1)), labels)


def slowly(index, generator):
    time.sleep(0.0001)
    return np.random.default_rng(index).standard_normal((1, 16, 16), dtype=np.float32), index % 10


class Throughput:
    def __init__(self, name):
        self.name, self.items = name, 0

    def __enter__(self):
        self.start = time.perf_counter()
        return self

    def __exit__(self, *_):
        self.rate = self.items / (time.perf_counter() - self.start)
        print(f"{self.name}: {self.rate:.0f} items/s ({self.items} items)")


def run(name, args, synthetic=False, **loader_arguments):
    opts = poptorch.Options()
    opts.deviceIterations(args.device_iterations)
    opts.replicationFactor(args.replicas)
    opts.enableSyntheticData(synthetic)
    torch.manual_seed(0)
    model = ClassificationModel()
    training_model = poptorch.trainingModel(model, opts, poptorch.optim.SGD(model.parameters(), lr=0.01))
    dataset = Items(args.items, slowly)
    loader = poptorch.DataLoader(opts, dataset, batch_size=args.batch_size, shuffle=True, **loader_arguments)
    batch = args.batch_size * args.device_iterations * args.replicas
    assert len(loader) == args.items // batch
    training_model.compile(torch.zeros(batch, 1, 16, 16), torch.zeros(batch, dtype=torch.long))
    with Throughput(name) as throughput:
        for _ in range(args.epochs):
            for data, labels in loader:
                assert data.shape == (batch, 1, 16, 16)
                training_model(data, labels)
                throughput.items += len(labels)
    if loader_arguments.get("mode"):
        loader.terminate()
    training_model.destroy()
    return throughput


def main():
    args = SimpleNamespace(items=240, epochs=2, batch_size=5, device_iterations=4, replicas=2)
    results = [
        run("synchronous", args),
        run("two workers", args, num_workers=2, persistent_workers=True),
        run(
            "asynchronous",
            args,
            num_workers=1,
            mode=poptorch.DataLoaderMode.Async,
            async_options={"load_indefinitely": True, "early_preload": True, "buffer_size": 4},
        ),
        run("rebatched", args, num_workers=1, mode=poptorch.DataLoaderMode.AsyncRebatched, rebatched_worker_size=10),
        run("synthetic", args, synthetic=True),
    ]
    assert all(result.items == args.epochs * args.items for result in results)

    accessor = poptorch.AsynchronousDataAccessor(
        poptorch.DataLoader(poptorch.Options(), Items(40, slowly), batch_size=8),
        buffer_size=2,
        sharing_strategy=poptorch.SharingStrategy.Fork,
    )
    assert len(accessor) == 5
    total = sum(int(labels.sum()) for _, labels in accessor)
    accessor.terminate()
    assert total == 4 * 45


if __name__ == "__main__":
    main()
