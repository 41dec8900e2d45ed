"""A program for torchrun, which knows nothing of PopTorch: it tells PopTorch itself which process it is.

Argument: the folder for the results.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from instance_cases import CASES, REPLICAS, rank_and_size, train
from torch import distributed

import poptorch


def main(folder: Path) -> None:
    rank, size = rank_and_size()
    # The program's own process group, besides PopTorch's.
    distributed.init_process_group("gloo")
    options = poptorch.Options().replicationFactor(REPLICAS // size)
    options.Distributed.configureProcessId(rank, size)
    torch.save(train(CASES["cnn"], options, rank, size), folder / f"{rank}.pt")
    total = torch.tensor([rank])
    distributed.all_reduce(total)
    assert total.item() == sum(range(size))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
