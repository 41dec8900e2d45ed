"""Measure ways of feeding the device: synchronous, asynchronous, rebatched, and synthetic data as the upper bound."""

import time

import numpy as np
import torch
from program_kit import Items, WithLoss, train
from torch import nn

import poptorch

ITEMS, EPOCHS, BATCH = 240, 2, 5
PER_CALL = BATCH * 4 * 2
ASYNC = {"load_indefinitely": True, "early_preload": True, "buffer_size": 4}
WAYS = {
    "synchronous": {},
    "two workers": {"num_workers": 2, "persistent_workers": True},
    "asynchronous": {"num_workers": 1, "mode": poptorch.DataLoaderMode.Async, "async_options": ASYNC},
    "rebatched": {"num_workers": 1, "mode": poptorch.DataLoaderMode.AsyncRebatched, "rebatched_worker_size": 10},
    "synthetic": {},
}


def slowly(index, generator):
    time.sleep(0.0001)
    return np.random.default_rng(index).standard_normal((1, 16, 16), dtype=np.float32), index % 10


def run(name):
    opts = poptorch.Options().deviceIterations(4).replicationFactor(2).enableSyntheticData(name == "synthetic")
    layers = nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(1), nn.Linear(4 * 49, 10)
    model = WithLoss(nn.Sequential(*layers), nn.CrossEntropyLoss())
    training = poptorch.trainingModel(model, opts, poptorch.optim.SGD(model.parameters(), lr=0.01))
    loader = poptorch.DataLoader(opts, Items(ITEMS, slowly), batch_size=BATCH, shuffle=True, **WAYS[name])
    assert len(loader) == ITEMS // PER_CALL
    training.compile(torch.zeros(PER_CALL, 1, 16, 16), torch.zeros(PER_CALL, dtype=torch.long))
    start = time.perf_counter()
    calls = len(train(training, loader, EPOCHS))
    print(f"{name}: {calls * PER_CALL / (time.perf_counter() - start):.0f} items/s")
    assert calls * PER_CALL == EPOCHS * ITEMS
    if "mode" in WAYS[name]:
        loader.terminate()
    training.destroy()


def main():
    torch.manual_seed(0)
    for name in WAYS:
        run(name)
    loader = poptorch.DataLoader(poptorch.Options(), Items(40, slowly), batch_size=8)
    fork = poptorch.SharingStrategy.Fork
    accessor = poptorch.AsynchronousDataAccessor(loader, buffer_size=2, sharing_strategy=fork)
    assert len(accessor) == 5
    assert sum(int(labels.sum()) for _, labels in accessor) == 4 * 45
    accessor.terminate()


if __name__ == "__main__":
    main()
