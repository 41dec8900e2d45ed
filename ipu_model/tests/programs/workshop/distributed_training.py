# run with: poprun --num-replicas 4 --num-instances 2 --ipus-per-replica 1
"""Data-parallel training over two processes; the same program runs without poprun in one."""

import argparse

import torch
import torch.nn as nn

import popdist
import popdist.poptorch
import poptorch


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
        self.loss = nn.CrossEntropyLoss()

    def forward(self, x, labels=None):
        out = self.layers(x)
        return out if labels is None else (out, self.loss(out, labels))


def digits(count):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 4
    images = torch.randn(4, 8, 8, generator=generator)[labels] + 0.5 * torch.randn(count, 8, 8, generator=generator)
    return torch.utils.data.TensorDataset(images, labels)


def train(args):
    if popdist.isPopdistEnvSet():
        import horovod.torch as hvd

        popdist.init()
        hvd.init()
        opts = popdist.poptorch.Options()
        opts.showCompilationProgressBar(popdist.getInstanceIndex() == 0)
    else:
        hvd, opts = None, poptorch.Options()
    opts.randomSeed(42)
    torch.manual_seed(0)
    opts.deviceIterations(2)
    opts.outputMode(poptorch.OutputMode.All)
    model = Net()
    loader = poptorch.DataLoader(opts, digits(256), batch_size=8, shuffle=True, drop_last=True)
    training_model = poptorch.trainingModel(model, opts, poptorch.optim.Adam(model.parameters(), lr=0.01))
    first = None
    for epoch in range(args.epochs):
        total = torch.zeros(1)
        for images, labels in loader:
            _, loss = training_model(images, labels)
            total += loss.mean() / len(loader)
        average = hvd.allreduce(total, op=hvd.Average).item() if hvd else total.item()
        if popdist.getInstanceIndex() == 0:
            print(
                f"epoch {epoch}: loss {average:.4f}, {len(loader)} batches of {len(labels)} for each instance",
                flush=True,
            )
        first = first or average
    training_model.copyWeightsToHost()
    checksum = sum(p.double().sum().item() for p in model.parameters())
    print(
        f"instance {popdist.getInstanceIndex()} of {popdist.getNumInstances()}: "
        f"{popdist.getNumTotalReplicas()} replicas, checksum {checksum:.6f}",
        flush=True,
    )
    if hvd:
        gathered = hvd.allgather(torch.tensor([checksum]))
        assert len(gathered) == popdist.getNumInstances() == 2
        assert torch.equal(gathered[0], gathered[1])
    assert average < 0.5 * first


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    train(args)


if __name__ == "__main__":
    main()
