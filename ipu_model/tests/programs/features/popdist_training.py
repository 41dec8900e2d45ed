# run with: poprun --num-instances 2 --num-replicas 4 --ipus-per-replica 1
"""Data-parallel training in several processes: popdist options, weights from rank 0, averaged metrics."""

import logging
from types import SimpleNamespace

import horovod.torch as hvd
import torch
from program_kit import train

import popdist
import popdist.poptorch
import poptorch


def init_popdist(args):
    popdist.init()
    args.use_popdist = popdist.isPopdistEnvSet()
    if args.use_popdist:
        args.replicas = popdist.getNumLocalReplicas()
        args.instances = popdist.getNumInstances()
        args.index = popdist.getInstanceIndex()
        hvd.init()
    return args


def create_options(args):
    if args.use_popdist:
        opts = popdist.poptorch.Options(ipus_per_replica=popdist.getNumIpusPerReplica())
    else:
        opts = poptorch.Options().replicationFactor(args.replicas)
    opts.deviceIterations(args.device_iterations)
    opts.Training.gradientAccumulation(args.accumulation)
    opts.randomSeed(args.seed)
    opts.outputMode(poptorch.OutputMode.All)
    return opts


class Regression(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(6, 24), torch.nn.Tanh(), torch.nn.Linear(24, 1))

    def forward(self, x, y):
        out = self.net(x).squeeze(-1)
        return out, torch.nn.functional.mse_loss(out, y)


def dataset(n):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, 6, generator=g)
    return torch.utils.data.TensorDataset(x, x.cos().sum(1))


def synchronise(value, args):
    if args.use_popdist:
        return hvd.allreduce(torch.tensor(value), name="value").item()
    return value


def main():
    args = init_popdist(
        SimpleNamespace(replicas=2, instances=1, index=0, device_iterations=2, accumulation=2, batch_size=4, seed=5)
    )
    logging.basicConfig(level=logging.INFO if args.index == 0 else logging.ERROR)

    torch.manual_seed(args.seed)
    opts = create_options(args)
    data = dataset(256)
    loader = poptorch.DataLoader(opts, data, batch_size=args.batch_size, shuffle=True, drop_last=True)
    assert loader.combinedBatchSize == args.batch_size * args.device_iterations * args.accumulation * args.replicas
    assert len(loader) == 256 // (loader.combinedBatchSize * args.instances)

    model = Regression()
    if args.use_popdist:
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    training = poptorch.trainingModel(model, opts, optimizer)
    history = []
    for epoch in range(6):
        losses = train(training, loader)
        history.append(synchronise(sum(losses) / len(losses), args))
        logging.info("epoch %d: loss %.4f", epoch, history[-1])
    assert history[-1] < 0.5 * history[0], history
    training.destroy()
    if args.use_popdist:
        assert opts.Distributed.numProcesses == args.instances
        assert opts.Distributed.processId == args.index
    logging.info("instance %d of %d is done", args.index, args.instances)


if __name__ == "__main__":
    main()
