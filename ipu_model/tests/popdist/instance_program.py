"""A program for several instances. Arguments: what to do, and the folder for the results.

`all` does everything that instances do together, `few` less; `killed` kills instance 1 in the middle of training;
`torchrun` knows nothing of PopDist and tells PopTorch itself which process it is.
"""

from __future__ import annotations

import sys

if sys.argv[1] != "torchrun":
    # First of all, as programs do: poprun lets it be found where Horovod is not installed.
    import horovod.torch as hvd

import logging
import os
import signal
from pathlib import Path
from typing import Any

import torch
from instance_cases import CASES, REPLICAS, model_of, optimiser_of, train
from torch import distributed

import popdist
import popdist.poptorch
import poptorch

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])  # as every launcher says it


def cases(names: list[str]) -> dict[str, Any]:
    """Plain options join when a model is compiled; PopDist's know the number of replicas."""
    plain = poptorch.Options().replicationFactor(popdist.getNumLocalReplicas())
    options = [plain if index == 0 else popdist.poptorch.Options() for index in range(len(names))]
    return {name: train(CASES[name], of_run, RANK, SIZE) for name, of_run in zip(names, options)}


def queries() -> dict[str, Any]:
    options = popdist.poptorch.Options()
    return {
        "total": popdist.getNumTotalReplicas(), "local": popdist.getNumLocalReplicas(),
        "ipus": popdist.getNumIpusPerReplica(), "instances": popdist.getNumInstances(),
        "index": popdist.getInstanceIndex(), "local index": popdist.getLocalInstanceIndex(),
        "offset": popdist.getReplicaIndexOffset(), "device": popdist.getDeviceId(),
        "replication factor": options.replication_factor, "process": options.Distributed.processId,
        "environment": dict(os.environ),
    }  # fmt: skip


def horovod() -> dict[str, Any]:
    hvd.init()
    x = torch.tensor([float(RANK), 0.0])
    model = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(model.weight, RANK)
    hvd.broadcast_parameters(model.state_dict(), root_rank=1)
    optimiser = torch.optim.SGD(model.parameters(), lr=RANK + 1.0)
    hvd.broadcast_optimizer_state(optimiser, root_rank=1)
    hvd.barrier()
    return {
        "place": (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()),
        "average": hvd.allreduce(x), "sum": hvd.allreduce(x, op=hvd.Sum), "old sum": hvd.allreduce(x, average=False),
        "smallest": hvd.allreduce(x, op=hvd.Min), "largest": hvd.allreduce(x, op=hvd.Max),
        "grouped": hvd.grouped_allreduce([x.half(), torch.tensor([RANK])], op=hvd.Sum),
        "gathered": hvd.allgather(torch.full((RANK + 1, 2), RANK)),
        "uneven": message(lambda: hvd.allgather(torch.zeros(1, RANK + 1))),
        "broadcast": hvd.broadcast(x, root_rank=1), "object": hvd.broadcast_object({"from": RANK}, root_rank=1),
        "parameters": model.weight.detach(), "optimiser": optimiser.param_groups[0]["lr"],
        "only 0": popdist.execute_on_instances({0}, lambda: hvd.allreduce(x, op=hvd.Sum)),
        "all": popdist.execute_on_instances(set(range(SIZE)), lambda: hvd.allreduce(x, op=hvd.Sum)),
    }  # fmt: skip


def mistakes() -> dict[str, Any]:
    """What instances are told that do not run the same program."""
    model, x = model_of(CASES["cnn"]), torch.zeros(2, 1, 8, 8)
    optimiser = poptorch.optim.SGD(model.parameters(), lr=0.1 * (RANK + 1))
    different = poptorch.trainingModel(model, poptorch.Options(), optimiser)
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("poptorch::python").addHandler(handler)
    torch.manual_seed(RANK)
    other = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.MSELoss())
    other.forward = lambda x: poptorch.identity_loss(other[0](x), "sum")  # type: ignore[method-assign]
    found = {"different programs": message(lambda: different(x, torch.zeros(2, dtype=torch.long)))}
    poptorch.trainingModel(other, poptorch.Options(), optimiser_of(CASES["cnn"], other))(torch.ones(2, 2))
    return {**found, "different weights": " ".join(lines)}


def message(action: Any) -> str:
    try:
        action()
    except poptorch.Error as error:
        return error.message
    return "no error"


def everything(names: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"queries": queries(), "cases": cases(names)}
    popdist.init()
    found["horovod"] = horovod()
    if len(names) > 1:
        found["mistakes"] = mistakes()
    popdist.synchronize()
    popdist.finalizeBackend()
    popdist.initializeBackend()
    popdist.synchronize()
    print("the instance has come", "to its end")
    return found


def killed() -> None:
    """Loaders keep processes of their own meanwhile."""
    options = poptorch.Options().showCompilationProgressBar(False)
    model = model_of(CASES["cnn"])
    data = [(torch.zeros(1, 8, 8), torch.tensor(0))] * 64
    loader = poptorch.DataLoader(options, data, batch_size=2, num_workers=1, mode=poptorch.DataLoaderMode.Async)
    training = poptorch.trainingModel(model, options, optimiser_of(CASES["cnn"], model))
    for step, (x, y) in enumerate(loader):
        if step == 3 and options.Distributed.processId == 1:
            print("now", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        training(x, y)
    print("never")


def torchrun() -> dict[str, Any]:
    # The program's own process group, besides PopTorch's.
    distributed.init_process_group("gloo")
    options = poptorch.Options().replicationFactor(REPLICAS // SIZE)
    options.Distributed.configureProcessId(RANK, SIZE)
    found = train(CASES["cnn"], options, RANK, SIZE)
    total = torch.tensor([RANK])
    distributed.all_reduce(total)
    assert total.item() == sum(range(SIZE))
    distributed.destroy_process_group()
    return found


if __name__ == "__main__":
    what = sys.argv[1]
    if what == "killed":
        killed()
    else:
        found = torchrun() if what == "torchrun" else everything(list(CASES) if what == "all" else ["cnn"])
        torch.save(found, Path(sys.argv[2]) / f"{RANK}.pt")
