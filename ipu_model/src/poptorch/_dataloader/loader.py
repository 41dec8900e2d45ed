"""`poptorch.DataLoader`: torch's loader with the batch size one call of a model needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import IterableDataset

from ipu_model.errors import require
from ipu_model.explore.loader import LoaderFacts, facts_of_loader, facts_of_torchs_loader
from poptorch._backend.settings import batching_of
from poptorch._dataloader.accessor import AsynchronousDataAccessor
from poptorch._dataloader.items import ItemLoader, ShuffledPart, _SubDataset
from poptorch._impl import createPoptorchError
from poptorch._logging import logger
from poptorch.enums import DataLoaderMode
from poptorch.options import Options


class DataLoader(ItemLoader):
    """Loads batches for whole calls: `batch_size` rows for every micro-batch that one call consumes.

    An item has `combinedBatchSize = batch_size * deviceIterations * gradientAccumulation * replicas / inputGroupSize`
    rows. `Sync` items are those of torch's loader; the asynchronous modes load them ahead in another process (tensors,
    flat tuples, lists and dicts of tensors, registered custom types) and hand out views that the next item overwrites.

    Args:
        options: the options of the model; frozen by this call.
        dataset: map-style or iterable.
        batch_size: rows of a micro-batch; `None` delivers single samples.
        shuffle: `None` means no.
        num_workers: torch worker processes.
        drop_last: drop samples that do not fill an item.
        persistent_workers: keep torch's workers between passes; `None` means whenever there are any.
        auto_distributed_partitioning: give each process of a distributed run its own part of a map-style data set.
        mode: a `DataLoaderMode`.
        async_options: arguments for `AsynchronousDataAccessor`, without `rebatched_size`.
        rebatched_worker_size: rows that torch's workers collate at a time when items are re-batched.
        batch_sampler: yields lists of indices; one item is made of as many of them as a call has micro-batches.
        **kwargs: passed on to torch's loader.

    Raises `Error`: `batch_sampler` is combined with arguments that it replaces, or the background process fails to
    start; `AssertionError`: arguments that contradict each other; `ZeroDivisionError`: too few samples for the
    processes.
    """

    def __init__(
        self,
        options: Options,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        num_workers: int = 0,
        drop_last: bool = True,
        persistent_workers: bool | None = None,
        auto_distributed_partitioning: bool = True,
        mode: DataLoaderMode = DataLoaderMode.Sync,
        async_options: dict[str, Any] | None = None,
        rebatched_worker_size: int | None = None,
        batch_sampler: Any = None,
        **kwargs: Any,
    ) -> None:
        message = f"The first argument of a DataLoader must be a poptorch.Options; got a {type(options).__name__}."
        require(isinstance(options, Options), message)
        for name, flag in (("shuffle", shuffle), ("drop_last", drop_last)):
            require(flag in (None, True, False), f"{name} is True or False; got {flag!r}.")
        for name, count in (("batch_size", batch_size), ("num_workers", num_workers)):
            require(count is None or isinstance(count, int), f"{name} is a whole number; got {count!r}.")
        is_dict = async_options is None or isinstance(async_options, dict)
        require(is_dict, f"async_options are a dict of arguments of AsynchronousDataAccessor; got {async_options!r}.")
        options._freeze()
        self._accessor: AsynchronousDataAccessor | None = None
        if batch_size is not None:
            self._options = options
        self._drop_last_item = drop_last
        self._torch_arguments = kwargs | {
            "num_workers": num_workers,
            "persistent_workers": num_workers > 0 if persistent_workers is None else persistent_workers,
        }
        distributed = auto_distributed_partitioning and options.Distributed.numProcesses > 1
        if isinstance(dataset, IterableDataset):
            check_iterable(distributed, num_workers, kwargs.get("worker_init_fn"))
        if batch_sampler is not None:
            check_batch_sampler(batch_size, bool(shuffle), distributed)
            batches = batching_of(options).slices
            warn_about_groups(batch_sampler, batches, drop_last)
            super().__init__(
                dataset,
                combined_batch_size=(getattr(batch_sampler, "batch_size", None) or 1) * batches,
                keeps_remainder=not drop_last,
                batches_per_item=batches,
                batch_sampler=batch_sampler,
                **self._torch_arguments,
            )
        else:
            self._init_batches(dataset, batch_size, bool(shuffle), distributed)
        if mode != DataLoaderMode.Sync:
            self._load_ahead(DataLoaderMode(mode), dict(async_options or {}), rebatched_worker_size)

    @property
    def options(self) -> Options:
        return self._options

    def _init_batches(self, dataset: Any, batch_size: int | None, shuffle: bool, distributed: bool) -> None:
        combined = None if batch_size is None else batch_size * batching_of(self.options).slices
        own = self._torch_arguments
        if combined is not None:
            rows = combined * (self.options.Distributed.numProcesses if distributed else 1)
            warn_about_samples(dataset, rows, self._drop_last_item)
        if distributed:
            if combined is None:
                raise AssertionError(
                    "auto_distributed_partitioning needs a batch_size; pass auto_distributed_partitioning=False "
                    "to read single samples of the whole dataset."
                )
            dataset = _SubDataset(dataset, self.options, combined, self._drop_last_item)
            if shuffle:
                dataset.check_common_seed()
            if shuffle and "sampler" not in own:
                own, shuffle = own | {"sampler": ShuffledPart(dataset)}, False
        super().__init__(
            dataset,
            combined_batch_size=combined,
            keeps_remainder=not self._drop_last_item and combined is not None,
            batch_size=combined,
            shuffle=shuffle,
            drop_last=self._drop_last_item and combined is not None,
            **own,
        )

    def _load_ahead(self, mode: DataLoaderMode, async_options: dict[str, Any], worker_size: int | None) -> None:
        require(
            "rebatched_size" not in async_options,
            "rebatched_size is not for async_options: a DataLoader always re-batches to its combined batch "
            "size. Use rebatched_worker_size to set how many rows its workers collate at a time.",
        )
        rows = None
        if self.batches_per_item is not None:
            batching: dict[str, Any] = {"batch_sampler": self.batch_sampler}
        else:
            rebatched = mode == DataLoaderMode.AsyncRebatched
            rows = rows_per_chunk(self.combinedBatchSize, rebatched, self._drop_last_item, worker_size)
            batching = {
                "batch_size": self.combinedBatchSize if rows is None else rows,
                "drop_last": self.drop_last and rows is None,
            }
            if not isinstance(self.dataset, IterableDataset):
                batching["sampler"] = self.sampler
        source = ItemLoader(
            self.dataset,
            combined_batch_size=None,
            keeps_remainder=self.keeps_remainder,
            batches_per_item=self.batches_per_item,
            **(self._torch_arguments | batching),
        )
        rebatched_size = None if rows is None else self.combinedBatchSize
        self._accessor = AsynchronousDataAccessor(source, rebatched_size=rebatched_size, **async_options)
        self.loads_ahead = True

    def __len__(self) -> int:
        """Return the number of items of a pass.

        For a `Sync` loader with a batch sampler that is the number of the sampler's batches. Raises
        `TypeError` for an iterable data set without a length.
        """
        batches = super().__len__()
        if self.batches_per_item is None or self._accessor is None:
            return batches
        items, incomplete = divmod(batches, self.batches_per_item)
        return items + bool(incomplete and self.keeps_remainder)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch promises a class of its own
        """Return an iterator over the items of a pass; asynchronous loaders have only one at a time."""
        return super().__iter__() if self._accessor is None else iter(self._accessor)

    def terminate(self) -> None:
        """End the background process, if there is one; an asynchronous loader cannot be used any more."""
        if self._accessor is not None:
            self._accessor.terminate()


@facts_of_loader.register
def _(loader: DataLoader) -> LoaderFacts:
    return facts_of_torchs_loader(loader) if loader._accessor is None else facts_of_loader(loader._accessor)


def check_batch_sampler(batch_size: int | None, shuffle: bool, distributed: bool) -> None:
    if batch_size != 1 or shuffle:
        raise createPoptorchError(
            f"batch_sampler is mutually exclusive with batch_size, shuffle; got batch_size={batch_size} and "
            f"shuffle={shuffle}. Set both in the batch_sampler."
        )
    if distributed:
        raise createPoptorchError(
            "batch_sampler is mutually exclusive with auto_distributed_partitioning=True when there are several "
            "processes. Pass auto_distributed_partitioning=False and let the sampler yield this process's indices."
        )


def warn_about_groups(batch_sampler: Any, batches_per_item: int, drop_last: bool) -> None:
    """Log a warning if the last item is, or may be, made of fewer batches than the others."""
    fate = "dropped" if drop_last else "returned as an item with fewer rows"
    try:
        batches = len(batch_sampler)
    except Exception:  # Samplers that fill batches up to a size refuse their length with errors of several classes.
        unknown = "The batch_sampler has no length. If its number of batches is not divisible by the %d batches of "
        logger.warning(unknown + "an item, the last ones are %s.", batches_per_item, fate)
        return
    left = batches % batches_per_item
    if left:
        text = "The %d batches of the batch_sampler are not divisible by the %d batches of an item: the last %d are %s."
        logger.warning(text, batches, batches_per_item, left, fate)


def check_iterable(distributed: bool, num_workers: int, worker_init_fn: Callable[[int], None] | None) -> None:
    """Refuse to partition an iterable data set (`AssertionError`); warn if workers would repeat it."""
    require(
        not distributed,
        "auto_distributed_partitioning=True is not supported for IterableDataset, which has no indices to divide. Pass "
        "auto_distributed_partitioning=False and let the dataset deliver each process its own samples.",
    )
    if num_workers > 1 and worker_init_fn is None:
        text = (
            "An IterableDataset with num_workers=%d and no worker_init_fn: unless the dataset divides its "
            "samples itself, the DataLoader will return %d times each element."
        )
        logger.warning(text, num_workers, num_workers)


def warn_about_samples(dataset: Any, rows_per_step: int, drop_last: bool) -> None:
    """Log a warning if `dataset` has a known length and leaves a short item or does not fill a single one."""
    try:
        samples = len(dataset)
    except TypeError:
        return
    if drop_last and samples < rows_per_step:
        text = (
            "The dataset has %d elements, fewer than the %d that one step takes: with drop_last=True the loader is "
            "empty. Lower the batch size, deviceIterations, gradientAccumulation or replicationFactor."
        )
    elif not drop_last and samples % rows_per_step:
        text = (
            "The number of elements in the dataset (%d) is not divisible by the number of elements processed per step "
            "(%d) and drop_last=False. Switch to drop_last=True: a model compiled for full items refuses the last one."
        )
    else:
        return
    logger.warning(text, samples, rows_per_step)


def rows_per_chunk(combined: int | None, rebatched: bool, drop_last: bool, worker_size: int | None) -> int | None:
    """Return the rows of the chunks that items are joined from, or `None` if torch's batches are the items."""
    require(
        combined is not None or not rebatched,
        "DataLoaderMode.AsyncRebatched needs a batch_size to re-batch to; use DataLoaderMode.Async for "
        "batch_size=None.",
    )
    # A short last item does not fit the slots of a plain asynchronous loader, but joined rows do.
    if combined is None or combined == 1 or (drop_last and not rebatched):
        return None
    per_chunk = combined if worker_size is None else worker_size
    require(isinstance(per_chunk, int), f"rebatched_worker_size is a whole number; got {per_chunk!r}.")
    require(
        per_chunk <= combined,
        f"rebatched_worker_size ({per_chunk}) must not exceed the combined batch size ({combined}), of which "
        "it is a part.",
    )
    return per_chunk
