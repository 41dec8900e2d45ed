"""A program for several instances: does everything that they do together, and saves what came out.

Arguments: the folder for the results, then `all` or `few`.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

# First of all, as programs do: poprun lets it be found where Horovod is not installed.
import horovod.torch as hvd
import torch
from instance_cases import CASES, model_of, rank_and_size, sgd, train

import popdist
import popdist.poptorch
import poptorch

RANK, SIZE = rank_and_size()


def cases(names: list[str]) -> dict[str, Any]:
    """Plain options join when a model is compiled; PopDist's know the number of replicas."""
    found = {}
    for index, name in enumerate(names):
        options = popdist.poptorch.Options()
        if index == 0:
            options = poptorch.Options().replicationFactor(popdist.getNumLocalReplicas())
        found[name] = train(CASES[name], options, RANK, SIZE)
    return found


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
    model = model_of(CASES["cnn"])
    different = poptorch.trainingModel(
        model, poptorch.Options(), poptorch.optim.SGD(model.parameters(), lr=0.1 * (RANK + 1))
    )
    x, y = torch.zeros(2, 1, 8, 8), torch.zeros(2, dtype=torch.long)
    found = {"different programs": message(lambda: different(x, y))}
    lines = Lines()
    logging.getLogger("poptorch::python").addHandler(lines)
    torch.manual_seed(RANK)
    other = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.MSELoss())
    other.forward = lambda x: poptorch.identity_loss(other[0](x), "sum")  # type: ignore[method-assign]
    poptorch.trainingModel(other, poptorch.Options(), sgd(other))(torch.ones(2, 2))
    found["different weights"] = " ".join(lines.texts)
    return found


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def message(action: Any) -> str:
    try:
        action()
    except poptorch.Error as error:
        return error.message
    return "no error"


def main(folder: Path, what: str) -> None:
    found: dict[str, Any] = {"queries": queries(), "cases": cases(list(CASES) if what == "all" else ["cnn"])}
    popdist.init()
    found["horovod"] = horovod()
    if what == "all":
        found["mistakes"] = mistakes()
    popdist.synchronize()
    popdist.finalizeBackend()
    popdist.initializeBackend()
    popdist.synchronize()
    print("the instance has come", "to its end")
    torch.save(found, folder / f"{RANK}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
