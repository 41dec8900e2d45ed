"""Call a learner's function in every instance and train with what it returns: the program that exercise 3 starts.

Every line that it prints is "fact: value". With ``--save FILE`` the first instance writes its first and its trained
weights there, each as one vector.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Callable

import torch
from torch import Tensor, nn

import popdist
import popdist.poptorch
from ipu_course.datasets import mnist
from ipu_course.instances.distributed_digits import IMAGES, agree, own_weights, say, start
from ipu_course.instances.function_file import read_function

Instance = Callable[..., Any]
"""A learner's function: network and data to (model, loader)."""


def weights_of(network: nn.Module) -> Tensor:
    """Return a copy of all weights as one vector."""
    return nn.utils.parameters_to_vector(network.parameters()).detach().clone()


def main() -> None:
    """Train once with the model and the loader of the learner's function."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("function", type=Path, help="file with the learner's function")
    parser.add_argument("--save", type=Path, help="file for the first and the trained weights")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    start()
    try:
        train(read_function(arguments.function), arguments.save)
    except Exception as error:  # whatever the learner's code raises
        say("error", " ".join(f"{type(error).__name__}: {error}".split()))
        raise SystemExit(1) from error


def train(function: Instance, save: Path | None) -> None:
    """Train for one epoch, and print what this instance sees."""
    network = own_weights()
    model, loader = function(network, mnist(train=True, images=IMAGES))
    first = weights_of(network)
    say("popdist", isinstance(model.options, popdist.poptorch.Options))
    rows = []
    for images, labels in loader:
        model(images, labels)
        rows.append(len(images))
    model.copyWeightsToHost()
    say("calls", len(rows))
    say("rows", rows[0] if rows else 0)
    say("agree", agree(network))
    if save and popdist.getInstanceIndex() == 0:
        torch.save([first, weights_of(network)], save)


if __name__ == "__main__":
    main()
