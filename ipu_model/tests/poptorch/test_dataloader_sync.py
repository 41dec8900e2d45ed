"""`poptorch.DataLoader` in line: sizes, lengths, remainders, samplers, streams (data reference, 2)."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loading_datasets import Dicts, Lengths, MeasuredStream, Numbers, Pairs, Stream, nothing, pad
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from ipu_model.errors import Error
from poptorch._dataloader import DataLoader
from poptorch._dataloader.loader import rows_per_chunk
from poptorch.enums import CommGroupType, DataLoaderMode
from poptorch.options import Options

WARNINGS = "poptorch::python"


pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


def options(d: int = 1, a: int = 1, r: int = 1) -> Options:
    opts = Options()
    opts.deviceIterations(d)
    opts.replicationFactor(r)
    opts.Training.gradientAccumulation(a)
    return opts


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """PopTorch's log lines, from level WARN on."""
    caplog.set_level(logging.WARNING, logger=WARNINGS)
    logging.getLogger(WARNINGS).addHandler(caplog.handler)
    yield caplog
    logging.getLogger(WARNINGS).removeHandler(caplog.handler)


@pytest.mark.parametrize(("b", "d", "a", "r", "combined"), [(16, 1, 1, 1, 16), (16, 4, 1, 1, 64), (2, 5, 8, 2, 160)])
def test_the_table_of_combined_batch_sizes(b: int, d: int, a: int, r: int, combined: int) -> None:
    loader = DataLoader(options(d, a, r), [torch.zeros(3, 32, 32)] * combined, batch_size=b)
    assert loader.combinedBatchSize == loader.batch_size == combined
    assert next(iter(loader)).shape == (combined, 3, 32, 32)


def test_without_batching_items_are_samples() -> None:
    loader = DataLoader(options(4, 2, 2), [torch.zeros(3, 32, 32)] * 5, batch_size=None)
    assert loader.combinedBatchSize is None
    assert len(loader) == 5
    assert next(iter(loader)).shape == (3, 32, 32)
    assert not hasattr(loader, "options")


def test_replicas_that_share_inputs_need_fewer_rows() -> None:
    opts = options(r=4)
    opts.inputReplicaGrouping(2, CommGroupType.Consecutive)
    assert DataLoader(opts, Numbers(20), batch_size=3).combinedBatchSize == 3 * (4 // 2)


@given(st.integers(0, 60), st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_items_keep_the_order_of_the_data(n: int, b: int, d: int, r: int, drop: bool) -> None:
    loader = DataLoader(options(d=d, r=r), [torch.tensor(i) for i in range(n)], batch_size=b, drop_last=drop)
    items = [item.tolist() for item in loader]
    c = b * d * r
    expected = [list(range(start, min(start + c, n))) for start in range(0, n, c)]
    if drop and n % c:
        expected.pop()
    assert items == expected
    assert len(loader) == len(expected) == (n // c if drop else -(-n // c))


def test_one_hundred_and_one_samples_in_sixes(warnings: pytest.LogCaptureFixture) -> None:
    # Section 2.6: by default 16 items of 6, 5 rows lost; with drop_last=False 17 items, the last of 5.
    assert [len(x) for x in DataLoader(options(), Numbers(101), batch_size=6)] == [6] * 16
    assert not warnings.records
    kept = DataLoader(options(), Numbers(101), batch_size=6, drop_last=False)
    assert [len(x) for x in kept] == [6] * 16 + [5]
    assert "is not divisible by the number of elements processed per step" in warnings.text


def test_a_dataset_too_small_for_one_step_gives_an_empty_loader_and_a_warning(
    warnings: pytest.LogCaptureFixture,
) -> None:
    loader = DataLoader(options(d=4, a=2), Numbers(7), batch_size=1)
    assert len(loader) == 0
    assert list(loader) == []
    assert "has 7 elements, fewer than the 8 that one step takes" in warnings.text
    warnings.clear()
    assert len(DataLoader(options(d=4, a=2), Numbers(8), batch_size=1)) == 1
    assert warnings.text == ""


def test_no_warning_where_nothing_is_left_over(warnings: pytest.LogCaptureFixture) -> None:
    DataLoader(options(), Numbers(12), batch_size=6, drop_last=False)
    assert not warnings.records


def test_a_remainder_counts_all_processes(warnings: pytest.LogCaptureFixture) -> None:
    # 12 samples fill steps of 6 but not steps of 4 processes x 6.
    opts = options()
    opts.Distributed.configureProcessId(0, 4)
    DataLoader(opts, Numbers(12), batch_size=6, drop_last=False)
    assert "(24)" in warnings.text


def test_items_look_like_torchs() -> None:
    (pair,) = DataLoader(options(), Pairs(4), batch_size=4)
    assert isinstance(pair, list)
    assert [tuple(x.shape) for x in pair] == [(4, 3, 4, 4), (4,)]
    (item,) = DataLoader(options(), Dicts(4), batch_size=4)
    assert list(item) == ["y", "x"]


def test_the_options_are_frozen_and_kept() -> None:
    opts = options()
    loader = DataLoader(opts, Numbers(4))
    assert loader.options is opts
    with pytest.raises(AttributeError, match="frozen"):
        opts.deviceIterations(2)


def test_the_first_argument_must_be_options() -> None:
    with pytest.raises(AssertionError, match=r"poptorch\.Options"):
        DataLoader(Numbers(4), Numbers(4))


def test_torchs_own_arguments_are_passed_on() -> None:
    generator = torch.Generator().manual_seed(5)
    loader = DataLoader(options(), Numbers(6), batch_size=2, shuffle=True, generator=generator)
    plain = torch.utils.data.DataLoader(
        Numbers(6), batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(5)
    )  # fmt: skip
    assert [x.tolist() for x in loader] == [x.tolist() for x in plain]
    assert loader.num_workers == 0
    assert not loader.persistent_workers


def test_workers_persist_unless_told_otherwise() -> None:
    assert DataLoader(options(), Numbers(6), num_workers=1).persistent_workers
    assert not DataLoader(options(), Numbers(6), num_workers=1, persistent_workers=False).persistent_workers


def test_terminate_has_no_effect_on_a_synchronous_loader() -> None:
    loader = DataLoader(options(), Numbers(4), batch_size=2)
    loader.terminate()
    assert len(list(loader)) == 2


# Batch samplers: section 2.7.


def test_consecutive_batches_of_a_sampler_make_an_item(warnings: pytest.LogCaptureFixture) -> None:
    sampler = BatchSampler(SequentialSampler(range(20)), batch_size=2, drop_last=True)
    loader = DataLoader(options(d=2, a=2), Pairs(20), batch_sampler=sampler)
    assert loader.combinedBatchSize == 2 * 4
    assert len(loader) == 10  # the sampler's own length
    assert [y.tolist() for _, y in loader] == [list(range(8)), list(range(8, 16))]
    assert "last 2 are dropped" in warnings.text


def test_an_incomplete_group_is_returned_if_nothing_is_dropped(warnings: pytest.LogCaptureFixture) -> None:
    sampler = BatchSampler(SequentialSampler(range(20)), batch_size=2, drop_last=True)
    loader = DataLoader(options(d=4), Pairs(20), batch_sampler=sampler, drop_last=False)
    assert [y.tolist() for _, y in loader] == [list(range(8)), list(range(8, 16)), list(range(16, 20))]
    assert "last 2 are returned" in warnings.text


def test_batches_of_several_lengths_can_be_padded(warnings: pytest.LogCaptureFixture) -> None:
    loader = DataLoader(options(d=2), Numbers(10), batch_sampler=Lengths(3, 4, 1, 2), collate_fn=pad)
    assert [item[:, 0].tolist() for item in loader] == [[0, 1, 2, 0, 3, 4, 5, 6], [7, 0, 0, 0, 8, 9, 0, 0]]
    assert loader.combinedBatchSize == 1 * 2  # a sampler without batch_size counts as 1
    assert "has no length" in warnings.text


def test_a_sampler_replaces_batch_size_and_shuffle() -> None:
    sampler = BatchSampler(RandomSampler(range(8)), batch_size=2, drop_last=True)
    for replaced in ({"batch_size": 2}, {"shuffle": True}):
        with pytest.raises(Error, match="mutually exclusive with batch_size, shuffle"):
            DataLoader(options(), Numbers(8), batch_sampler=sampler, **replaced)


def test_a_sampler_is_not_divided_between_processes() -> None:
    opts = options()
    opts.Distributed.configureProcessId(0, 2)
    sampler = BatchSampler(SequentialSampler(range(8)), batch_size=2, drop_last=True)
    with pytest.raises(Error, match="mutually exclusive with auto_distributed_partitioning=True"):
        DataLoader(opts, Numbers(8), batch_sampler=sampler)
    loader = DataLoader(opts, Numbers(8), batch_sampler=sampler, auto_distributed_partitioning=False)
    assert len(list(loader)) == 4


def test_elements_that_cannot_be_concatenated_are_named() -> None:
    loader = DataLoader(options(d=2), ["a", "b"], batch_sampler=Lengths(1, 1))
    with pytest.raises(TypeError, match="cannot be concatenated"):
        next(iter(loader))


# Streams: section 2.8.


def test_fifty_samples_over_four_workers() -> None:
    # 13, 13, 13 and 11 samples: dropping leaves one full item each; else partials of 5, 5, 5 and 3 come too.
    dropped = DataLoader(options(), Stream(50), batch_size=8, num_workers=4, worker_init_fn=nothing)
    assert [len(x) for x in dropped] == [8] * 4


def test_partial_batches_of_every_worker_come_if_kept() -> None:
    kept = DataLoader(options(), Stream(50), batch_size=8, num_workers=4, drop_last=False, worker_init_fn=nothing)
    assert sorted(len(x) for x in kept) == [3, 5, 5, 5, 8, 8, 8, 8]


def test_workers_without_init_function_repeat_the_stream(warnings: pytest.LogCaptureFixture) -> None:
    loader = DataLoader(options(), Stream(6, divided=False), batch_size=2, num_workers=2)
    assert "will return 2 times each element" in warnings.text
    assert sorted(int(x) for item in loader for x in item) == sorted([0, 1, 2, 3, 4, 5] * 2)


def test_the_length_of_a_stream() -> None:
    assert len(DataLoader(options(), MeasuredStream(50), batch_size=8)) == 6
    assert len(DataLoader(options(), MeasuredStream(50), batch_size=8, drop_last=False)) == 7
    with pytest.raises(TypeError):
        len(DataLoader(options(), Stream(50), batch_size=8))


# What re-batching needs: section 2.5.


@pytest.mark.parametrize(
    ("combined", "rebatched", "drop", "worker_size", "expected"),
    [
        (8, False, True, None, None),  # plain Async
        (8, True, True, None, 8),
        (8, True, True, 3, 3),
        (8, False, False, None, 8),  # Async that keeps the remainder is re-batched
        (1, False, False, None, None),  # unless items are single rows
        (None, False, False, None, None),
        (8, False, True, 100, None),  # rebatched_worker_size is ignored when not re-batching
    ],
)
def test_when_items_are_rebatched(
    combined: int | None,
    rebatched: bool,
    drop: bool,
    worker_size: int | None,
    expected: int | None,
) -> None:
    assert rows_per_chunk(combined, rebatched, drop, worker_size) == expected


def test_chunks_larger_than_items_are_refused() -> None:
    with pytest.raises(AssertionError, match="rebatched_worker_size"):
        DataLoader(
            options(), Numbers(9), batch_size=4, mode=DataLoaderMode.AsyncRebatched, rebatched_worker_size=5
        )  # fmt: skip


def test_rebatching_needs_a_batch_size() -> None:
    with pytest.raises(AssertionError, match="needs a batch_size"):
        DataLoader(options(), Numbers(9), batch_size=None, mode=DataLoaderMode.AsyncRebatched)


def test_the_rebatched_size_is_the_loaders_business() -> None:
    with pytest.raises(AssertionError, match="rebatched_size"):
        DataLoader(options(), Numbers(9), mode=DataLoaderMode.Async, async_options={"rebatched_size": 3})
