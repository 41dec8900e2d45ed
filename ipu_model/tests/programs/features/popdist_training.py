# run with: poprun --num-instances 2 --num-replicas 4 --ipus-per-replica 1
"""Data-parallel training in several processes: popdist options, weights from rank 0, averaged metrics."""

import horovod.torch as hvd
import torch
from program_kit import WithLoss, train
from torch import nn

import popdist
import popdist.poptorch
import poptorch

SEED, BATCH, EPOCHS = 5, 4, 6

popdist.init()
assert popdist.isPopdistEnvSet()
replicas, instances, index = popdist.getNumLocalReplicas(), popdist.getNumInstances(), popdist.getInstanceIndex()
hvd.init()
opts = popdist.poptorch.Options(ipus_per_replica=popdist.getNumIpusPerReplica())
opts.deviceIterations(2).randomSeed(SEED).outputMode(poptorch.OutputMode.All)
opts.Training.gradientAccumulation(2)

x = torch.randn(256, 6, generator=torch.Generator().manual_seed(0))
dataset = torch.utils.data.TensorDataset(x, x.cos().sum(1, keepdim=True))
loader = poptorch.DataLoader(opts, dataset, batch_size=BATCH, shuffle=True, drop_last=True)
assert loader.combinedBatchSize == BATCH * 2 * 2 * replicas
assert len(loader) == 256 // (loader.combinedBatchSize * instances)

torch.manual_seed(SEED)
model = WithLoss(nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1)), nn.functional.mse_loss)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
training = poptorch.trainingModel(model, opts, poptorch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
history = []
for _ in range(EPOCHS):
    losses = train(training, loader)
    history.append(hvd.allreduce(torch.tensor(sum(losses) / len(losses)), name="value").item())
training.destroy()
assert history[-1] < 0.5 * history[0], history
assert opts.Distributed.numProcesses == instances
assert opts.Distributed.processId == index
