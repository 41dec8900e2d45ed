"""The data of a case, straight or through a loader, which must deliver the data set's rows in order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

import poptorch
from fuzz.cases import Case, inputs_of, options_of
from fuzz.plain import slices


class Misloaded(Exception):
    """A loader delivered something else than the rows of its data set."""


def batches_of(case: Case, calls: int) -> Iterator[Any]:
    """Yield the inputs of so many calls.

    Raises:
        Misloaded: a loader's items are not the data set's rows in order.
    """
    data = inputs_of(case, case.rows * max(1, slices(case)) + case.surplus)
    if case.loader == "tensors" or not isinstance(data, Tensor) or case.rows == 0:
        # Each call gets data of its own: a network may write into its inputs.
        return (tree_map_only(Tensor, _same_layout(case), data) for _ in range(calls))
    return _loaded(case, inputs_of(case, calls * case.rows * slices(case) + case.surplus).detach())


def _same_layout(case: Case) -> Any:
    return (lambda tensor: tensor) if case.layout != "contiguous" else Tensor.clone


def _loaded(case: Case, data: Any) -> Iterator[Any]:
    mode = poptorch.DataLoaderMode[case.loader]
    fork = {"async_options": {"sharing_strategy": poptorch.SharingStrategy.Fork}}
    asynchronous: dict[str, Any] = {} if case.loader == "Sync" else fork
    loader = poptorch.DataLoader(
        options_of(case),
        data,
        batch_size=case.rows,
        drop_last=case.drop_last,
        num_workers=case.workers,
        mode=mode,
        **asynchronous,
    )
    try:
        start = 0
        for item in loader:
            if not torch.equal(item, data[start : start + len(item)]):
                raise Misloaded(f"rows {start} to {start + len(item) - 1} came out as others")
            start += len(item)
            yield item
        left = len(data) - start
        if left and (not case.drop_last or left >= case.rows * slices(case)):
            raise Misloaded(f"{left} rows of {len(data)} did not come out")
    finally:
        with suppress(AttributeError):
            loader.terminate()
