"""Compile ahead of time: a cache of executables, precompilation for an offline target, export and load."""

import os
import pathlib
import shutil
import tempfile
import time
from types import SimpleNamespace

import torch

import poptorch


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 4, 3)
        self.fc = torch.nn.Linear(4 * 6 * 6, 3)
        self.loss = torch.nn.CrossEntropyLoss()

    def forward(self, x, y=None):
        out = self.fc(torch.relu(self.conv(x)).flatten(1))
        if y is None:
            return out
        return out, self.loss(out, y)


def cached_options(folder):
    opts = poptorch.Options()
    opts.enableExecutableCaching(str(folder))
    opts.modelName("network")
    return opts


def run_cache(folder):
    x = torch.randn(2, 1, 8, 8)
    results = []
    torch.manual_seed(1)
    model = Network().eval()
    for _ in range(2):
        executor = poptorch.inferenceModel(model, cached_options(folder))
        start = time.perf_counter()
        results.append(executor(x))
        print(f"first call {time.perf_counter() - start:.3f} s, files: {len(os.listdir(folder))}")
        assert executor.isCompiled()
        executor.destroy()
    assert torch.equal(*results)
    assert len(os.listdir(folder)) > 0


def run_export(folder):
    torch.manual_seed(2)
    model = Network()
    opts = poptorch.Options()
    opts.Training.gradientAccumulation(2)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.05)
    training = poptorch.trainingModel(model, opts, optimizer)
    x, y = torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])
    path = pathlib.Path(folder) / "training.poptorch"
    training.compileAndExport(str(path), x, y, export_model=True)
    assert path.exists()

    loaded = poptorch.load(str(path))
    losses = [loaded(x, y)[1].item() for _ in range(5)]
    print("loaded and trained:", [round(loss, 3) for loss in losses])
    assert losses[-1] < losses[0]
    loaded.destroy()

    def on_demand(opts):
        opts.connectionType(poptorch.ConnectionType.OnDemand)

    again = poptorch.load(str(path), on_demand)
    assert again(x, y)[1].item() == losses[0]
    again.destroy()

    inference = poptorch.inferenceModel(model.eval())
    exported = pathlib.Path(folder) / "inference.poptorch"
    inference.compileAndExport(str(exported), x, export_model=False)
    fresh = poptorch.inferenceModel(model)
    fresh.loadExecutable(str(exported))
    assert torch.allclose(fresh(x), Network.forward(model, x), atol=1e-5)


def run_offline(folder):
    opts = poptorch.Options()
    opts.useOfflineIpuTarget(ipu_version=2)
    executor = poptorch.inferenceModel(Network().eval(), opts)
    target = os.path.join(folder, "offline.poptorch")
    executor.compileAndExport(target, torch.zeros(2, 1, 8, 8))
    assert os.path.getsize(target) > 0
    try:
        executor(torch.zeros(2, 1, 8, 8))
    except (AssertionError, poptorch.Error) as error:
        print("as expected:", str(error).splitlines()[0])
    else:
        raise SystemExit("an executable for an offline target ran")


def main():
    args = SimpleNamespace(keep=False)
    folder = tempfile.mkdtemp()
    try:
        os.makedirs(os.path.join(folder, "cache"))
        run_cache(os.path.join(folder, "cache"))
        run_export(folder)
        run_offline(folder)
    finally:
        if not args.keep:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
