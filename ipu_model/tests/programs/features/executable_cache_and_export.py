"""Compile ahead of time: a cache of executables, precompilation for an offline target, export and load."""

import os

import torch
from program_kit import WithLoss, check_close, check_learned
from torch import nn

import poptorch


def network(seed):
    torch.manual_seed(seed)
    layers = nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 3)
    return WithLoss(nn.Sequential(*layers), nn.CrossEntropyLoss())


def run_cache():
    x, model, results = torch.randn(2, 1, 8, 8), network(1).eval(), []
    for _ in range(2):
        opts = poptorch.Options().enableExecutableCaching("cache").modelName("network")
        executor = poptorch.inferenceModel(model, opts)
        results.append(executor(x))
        assert executor.isCompiled()
        executor.destroy()
    assert torch.equal(*results)
    assert len(os.listdir("cache")) > 0


def run_export():
    model = network(2)
    opts = poptorch.Options()
    opts.Training.gradientAccumulation(2)
    training = poptorch.trainingModel(model, opts, poptorch.optim.SGD(model.parameters(), lr=0.05))
    x, y = torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])
    training.compileAndExport("training.poptorch", x, y, export_model=True)

    loaded = poptorch.load("training.poptorch")
    losses = [loaded(x, y)[1].item() for _ in range(5)]
    check_learned(losses, 1)
    loaded.destroy()

    def on_demand(opts):
        opts.connectionType(poptorch.ConnectionType.OnDemand)

    again = poptorch.load("training.poptorch", on_demand)
    assert again(x, y)[1].item() == losses[0]
    again.destroy()

    inference = poptorch.inferenceModel(model.eval())
    inference.compileAndExport("inference.poptorch", x, export_model=False)
    fresh = poptorch.inferenceModel(model)
    fresh.loadExecutable("inference.poptorch")
    check_close(fresh(x), WithLoss.forward(model, x), 1e-5)


def run_offline():
    executor = poptorch.inferenceModel(network(3).eval(), poptorch.Options().useOfflineIpuTarget(ipu_version=2))
    executor.compileAndExport("offline.poptorch", torch.zeros(2, 1, 8, 8))
    assert os.path.getsize("offline.poptorch") > 0
    try:
        executor(torch.zeros(2, 1, 8, 8))
    except (AssertionError, poptorch.Error) as error:
        print("as expected:", str(error).splitlines()[0])
    else:
        raise SystemExit("an executable for an offline target ran")


os.mkdir("cache")
run_cache()
run_export()
run_offline()
