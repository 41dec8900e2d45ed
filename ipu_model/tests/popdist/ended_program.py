"""A program whose instance 1 is killed in the middle of training; loaders keep processes of their own meanwhile."""

from __future__ import annotations

import os
import signal

import torch
from instance_cases import CASES, model_of, sgd

import poptorch


def main() -> None:
    options = poptorch.Options().showCompilationProgressBar(False)
    model = model_of(CASES["cnn"])
    data = [(torch.zeros(1, 8, 8), torch.tensor(0))] * 64
    loader = poptorch.DataLoader(options, data, batch_size=2, num_workers=1, mode=poptorch.DataLoaderMode.Async)
    training = poptorch.trainingModel(model, options, sgd(model))
    for step, (x, y) in enumerate(loader):
        if step == 3 and options.Distributed.processId == 1:
            print("now", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        training(x, y)
    print("never")


if __name__ == "__main__":
    main()
