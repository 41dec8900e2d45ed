"""How many rows make an item, and what to refuse or warn about before any of them is loaded."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from poptorch._backend.compilation import batching_of, check_counts
from poptorch._impl import createPoptorchError
from poptorch.options import Options

_logger = logging.getLogger("poptorch::python")


def micro_batches_per_item(options: Options) -> int:
    """Return how many micro-batches one call of a model with these options consumes.

    Raises:
        Error: a count below one, for which there is no batch.
    """
    check_counts(batching_of(options))
    chunks = options.replication_factor // options.input_group_size
    return int(options.device_iterations * options.Training.gradient_accumulation * chunks)


def check_batch_sampler(batch_size: int | None, shuffle: bool, distributed: bool) -> None:
    """Raise `poptorch.Error` if a batch sampler was given together with what it replaces."""
    if batch_size != 1 or shuffle:
        raise createPoptorchError(
            f"batch_sampler is mutually exclusive with batch_size, shuffle; got batch_size={batch_size} and "
            f"shuffle={shuffle}. Set both in the batch_sampler."
        )
    if distributed:
        raise createPoptorchError(
            "batch_sampler is mutually exclusive with auto_distributed_partitioning=True when there are "
            "several processes. Pass auto_distributed_partitioning=False and let the sampler yield this "
            "process's indices."
        )


def warn_about_groups(batch_sampler: Any, batches_per_item: int, drop_last: bool) -> None:
    """Log a warning if the last item is, or may be, made of fewer batches than the others."""
    fate = "dropped" if drop_last else "returned as an item with fewer rows"
    if not hasattr(batch_sampler, "__len__"):
        _logger.warning(
            "The batch_sampler has no length. If its number of batches is not divisible by the %d batches of "
            "an item, the last ones are %s.", batches_per_item, fate,
        )  # fmt: skip
    elif len(batch_sampler) % batches_per_item:
        _logger.warning(
            "The %d batches of the batch_sampler are not divisible by the %d batches of an item: the last %d "
            "are %s.",
            len(batch_sampler), batches_per_item, len(batch_sampler) % batches_per_item, fate,
        )  # fmt: skip


def check_iterable(distributed: bool, num_workers: int, worker_init_fn: Callable[[int], None] | None) -> None:
    """Refuse to partition an iterable data set (`AssertionError`); warn if workers would repeat it."""
    assert not distributed, (
        "auto_distributed_partitioning=True is not supported for IterableDataset, which has no indices to "
        "divide. Pass auto_distributed_partitioning=False and let the dataset deliver each process its own "
        "samples."
    )
    if num_workers > 1 and worker_init_fn is None:
        _logger.warning(
            "An IterableDataset with num_workers=%d and no worker_init_fn: unless the dataset divides its "
            "samples itself, the DataLoader will return %d times each element.", num_workers, num_workers,
        )  # fmt: skip


def warn_about_remainder(dataset: Any, rows_per_step: int) -> None:
    """Log a warning if the samples of `dataset`, where they can be counted, do not fill whole steps."""
    try:
        samples = len(dataset)
    except TypeError:
        return
    if samples % rows_per_step:
        _logger.warning(
            "The number of elements in the dataset (%d) is not divisible by the number of elements processed "
            "per step (%d) and drop_last=False. A model compiled for full items refuses the last one; switch "
            "to drop_last=True.",
            samples, rows_per_step,
        )  # fmt: skip


def warn_about_nothing(dataset: Any, rows_per_step: int) -> None:
    """Log a warning if `dataset`, where its samples can be counted, does not fill a single item."""
    try:
        samples = len(dataset)
    except TypeError:
        return
    if samples < rows_per_step:
        _logger.warning(
            "The dataset has %d elements, fewer than the %d that one step takes: with drop_last=True the loader is "
            "empty. Lower the batch size, deviceIterations, gradientAccumulation or replicationFactor.",
            samples, rows_per_step,
        )  # fmt: skip


class GluedRows(NamedTuple):
    """Re-batching: rows of an item, and of the chunks it is glued from."""

    per_item: int
    per_chunk: int


def rows_to_glue(combined: int | None, rebatched: bool, drop_last: bool, worker_size: int | None) -> GluedRows | None:
    """Return how to re-batch, or `None` where torch's batches are the items.

    Raises `AssertionError` if there is nothing to re-batch to, or chunks would be larger than items.
    """
    assert combined is not None or not rebatched, (
        "DataLoaderMode.AsyncRebatched needs a batch_size to re-batch to; use DataLoaderMode.Async for batch_size=None."
    )
    # A short last item does not fit the slots of a plain asynchronous loader, glued rows do.
    if combined is None or combined == 1 or (drop_last and not rebatched):
        return None
    per_chunk = combined if worker_size is None else worker_size
    assert per_chunk <= combined, (
        f"rebatched_worker_size ({per_chunk}) must not exceed the combined batch size ({combined}), of which "
        "it is a part."
    )
    return GluedRows(combined, per_chunk)
