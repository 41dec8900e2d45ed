"""Runs in a process of its own: imports what the lessons import and uses each thing once.

`python -m ipu_course.programs.doctor.probe` prints one line of JSON for each stage that ended. When a stage ends the
process, or never ends, the doctor knows which one it was by the line that is missing.
"""

from __future__ import annotations

import json
from importlib import import_module
from importlib.util import find_spec
from typing import Callable

ROWS = 4


def import_torch() -> str:
    """torch, and one operation."""
    torch = import_module("torch")
    total = float(torch.ones(2, 2).sum())
    if total != 4.0:
        raise ArithmeticError(f"torch.ones(2, 2).sum() gave {total}")
    return "imported, and computes"


def import_torchvision() -> str:
    """torchvision."""
    import_module("torchvision")
    return "imported"


def import_poptorch() -> str:
    """poptorch, and that it is more than an empty folder of that name."""
    poptorch = import_module("poptorch")
    for name in ("Options", "trainingModel", "DataLoader"):
        if not hasattr(poptorch, name):
            raise ImportError(f"poptorch has no {name}: something else of that name was imported")
    return "imported"


def use_engine() -> str:
    """A small modelled profile, where there is an IPU Model."""
    if find_spec("ipu_model") is None:
        return "no IPU Model here: lessons show what is measured, and nothing modelled"
    import torch

    import poptorch
    from ipu_course import engine

    profile = engine.profile_module(torch.nn.Linear(8, 8), (torch.zeros(ROWS, 8),), poptorch.Options())
    if profile is engine.NOT_MODELLED:
        raise RuntimeError("the engine gave no profile")
    return "a small profile was modelled"


def read_data() -> str:
    """The bundled data, read as the lessons do."""
    from ipu_course.datasets import mnist
    from ipu_course.ladder import published_ladder

    images, steps = len(mnist(train=False)), len(published_ladder().steps)
    if not (images and steps):
        raise RuntimeError(f"{images} test images, {steps} published steps")
    return "the digits and the published results can be read"


def use_loader() -> str:
    """An asynchronous loader: starts a worker process, takes what it loads, ends it."""
    import torch
    from torch.utils.data import TensorDataset

    import poptorch

    rows = torch.arange(2 * ROWS, dtype=torch.float32)
    loader = poptorch.DataLoader(
        poptorch.Options(), TensorDataset(rows), batch_size=ROWS, mode=poptorch.DataLoaderMode.Async
    )
    try:
        total = sum(float(item[0].sum()) for item in loader)
    finally:
        loader.terminate()
    if total != float(rows.sum()):
        raise RuntimeError(f"the worker's items sum to {total}, not to {float(rows.sum())}")
    return "a worker process started, loaded and ended"


STAGES: dict[str, Callable[[], str]] = {
    "torch": import_torch,
    "torchvision": import_torchvision,
    "poptorch": import_poptorch,
    "engine": use_engine,
    "data": read_data,
    "loader": use_loader,
}


def main() -> None:
    """Run the stages; a failed one does not keep the others from being tried."""
    for name, stage in STAGES.items():
        try:
            result = {"stage": name, "works": True, "text": stage()}
        except Exception as error:
            result = {"stage": name, "works": False, "text": f"{type(error).__name__}: {error}"}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
