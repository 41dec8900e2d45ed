"""The program that lesson 14 starts to get a report: a small network on digits, in a pipeline of four IPUs."""

from __future__ import annotations

import torch

import poptorch
from ipu_course.datasets import mnist
from ipu_course.models import Digits

MICRO_BATCH, ACCUMULATION, DEVICE_ITERATIONS = 32, 8, 2
BEGINS = {2: 1, 5: 2, 7: 3}  # layers at which an IPU begins
IMAGES = 1024


def main() -> None:
    """Train on 1,024 digits in two calls."""
    options = poptorch.Options().showCompilationProgressBar(False)
    options.deviceIterations(DEVICE_ITERATIONS)
    options.Training.gradientAccumulation(ACCUMULATION)
    network = Digits()
    for layer, ipu in BEGINS.items():
        network.layers[layer] = poptorch.BeginBlock(network.layers[layer], ipu_id=ipu)
    model = poptorch.trainingModel(network, options, poptorch.optim.SGD(network.parameters(), lr=0.1))
    for images, labels in poptorch.DataLoader(options, mnist(train=True, images=IMAGES), batch_size=MICRO_BATCH):
        model(images, labels)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
