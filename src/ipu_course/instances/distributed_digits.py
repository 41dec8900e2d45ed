"""Train on the digits in several instances, then make three mistakes: the program that lesson 10 starts with poprun.

Every line that it prints is "fact: value". With ``--save FILE`` the first instance writes the trained weights there.
"""

from __future__ import annotations

import argparse

import horovod.torch as hvd
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import popdist
import popdist.poptorch
import poptorch
from ipu_course.datasets import mnist
from ipu_course.models import Digits

IMAGES, MICRO_BATCH, ACCUMULATION, REPLICAS = 1_024, 8, 2, 4
SAME = 1e-6  # weights that differ by less are called equal


def start() -> None:
    """Join the other instances, as a program does once, before all else."""
    if popdist.isPopdistEnvSet():
        popdist.init()
    hvd.init()


def make_options() -> poptorch.Options:
    """Return the options of this instance; without poprun it has all replicas."""
    options: poptorch.Options
    if popdist.isPopdistEnvSet():
        options = popdist.poptorch.Options()  # its replicas, the instances, and which of them this is
    else:
        options = poptorch.Options()
        options.replicationFactor(REPLICAS)
    options.Training.gradientAccumulation(ACCUMULATION)
    options.showCompilationProgressBar(False)
    return options


def train(network: nn.Module) -> list[float]:
    """Train on this instance's digits, and return the mean loss of each call."""
    options = make_options()
    optimizer = poptorch.optim.SGD(network.parameters(), lr=0.1)
    model = poptorch.trainingModel(network, options, optimizer)
    loader = poptorch.DataLoader(options, mnist(train=True, images=IMAGES), batch_size=MICRO_BATCH)
    losses = [model(images, labels)[1].mean().item() for images, labels in loader]
    model.copyWeightsToHost()
    model.detachFromDevice()
    return losses


def loaded(options: poptorch.Options, partitioned: bool = True) -> str:
    """Return in words what a loader with these options gives to this instance."""
    numbers = TensorDataset(torch.arange(IMAGES))
    loader = poptorch.DataLoader(
        options, numbers, batch_size=MICRO_BATCH, auto_distributed_partitioning=partitioned
    )  # fmt: skip
    items = [item for (item,) in loader]
    return f"{len(items)} items of {len(items[0])} rows, digits {int(items[0][0])} to {int(items[-1][-1])}"


def own_weights() -> Digits:
    """Return a network whose first weights depend on the instance, as in a program that forgets the seed."""
    network = Digits()
    torch.manual_seed(popdist.getInstanceIndex())
    for layer in network.layers:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            layer.reset_parameters()
    return network


def agree(network: nn.Module) -> bool:
    """Tell whether all instances have the same weights."""
    mine = torch.cat([weight.detach().float().flatten() for weight in network.parameters()])
    everyone: Tensor = hvd.allgather(mine).view(-1, len(mine))
    return bool((everyone - mine).abs().max() < SAME)


def plain_options() -> poptorch.Options:
    """Return the options of a program that does not ask popdist, and so does not know about poprun's replicas."""
    options = poptorch.Options()
    options.Training.gradientAccumulation(ACCUMULATION)
    return options


def say(fact: str, value: object) -> None:
    """Print one line and flush it, because the instances share the screen."""
    print(f"{fact}: {value}", flush=True)


def main() -> None:
    """Train three times, and print what this instance sees."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", help="file for the trained weights")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    start()
    say("replicas", f"{popdist.getNumLocalReplicas()} of {popdist.getNumTotalReplicas()}")
    say("its loader gives", loaded(make_options()))
    network = Digits()
    losses = train(network)
    say("the loss fell", losses[-1] < losses[0])
    say("the weights of all instances agree", agree(network))
    if arguments.save and popdist.getInstanceIndex() == 0:
        torch.save([weight.detach() for weight in network.parameters()], arguments.save)
    say("mistake 1, its loader gives", loaded(plain_options()))
    say("mistake 2, its loader gives", loaded(make_options(), partitioned=False))
    network = own_weights()
    train(network)
    say("mistake 3, the weights agree", agree(network))
    network = own_weights()
    hvd.broadcast_parameters(network.state_dict(), root_rank=0)
    train(network)
    say("mistake 3 repaired, the weights agree", agree(network))


if __name__ == "__main__":
    main()
