"""`poptorch.DataLoader` in line, re-batching, and shares of several processes (data reference, section 2).

What is the same in line and in the background is in test_dataloader_async.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loading_datasets import Lengths, Numbers, Stream
from torch.utils.data import BatchSampler, SequentialSampler

from ipu_model.errors import Error
from poptorch._dataloader import DataLoader
from poptorch._dataloader.items import ShuffledPart, _SubDataset, glue, rows_of, share_of
from poptorch._dataloader.loader import rows_per_chunk
from poptorch._utils import combined_batch_generator
from poptorch.enums import CommGroupType, DataLoaderMode
from poptorch.options import Options

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
PAIRS_OF_INDICES = BatchSampler(SequentialSampler(range(20)), batch_size=2, drop_last=True)


def options(d: int = 1, a: int = 1, r: int = 1, process: int = 0, of: int = 1, seed: int | None = None) -> Options:
    opts = Options().deviceIterations(d).replicationFactor(r)
    opts.Training.gradientAccumulation(a)
    opts.Distributed.configureProcessId(process, of)
    return opts if seed is None else opts.randomSeed(seed)


def read(loader: DataLoader) -> list[int]:
    """Return the samples of one pass, by number."""
    return [int(sample) for item in loader for sample in item[:, 0]]


class TestItems:
    @pytest.mark.parametrize(
        ("b", "d", "a", "r", "combined"),
        [(16, 1, 1, 1, 16), (16, 4, 1, 1, 64), (2, 5, 8, 2, 160), (None, 4, 2, 2, None)],
    )
    def test_the_table_of_combined_batch_sizes(self, b: int, d: int, a: int, r: int, combined: int | None) -> None:
        opts = options(d, a, r)
        loader = DataLoader(opts, [torch.zeros(3, 2)] * (combined or 5), batch_size=b)
        assert loader.combinedBatchSize == loader.batch_size == loader._combined_batch_size == combined
        assert next(iter(loader)).shape == ((3, 2) if combined is None else (combined, 3, 2))
        assert len(loader) == (5 if combined is None else 1)
        assert getattr(loader, "options", None) is (None if combined is None else opts)  # single samples have none
        with pytest.raises(AttributeError):
            loader.combinedBatchSize = 3
        with pytest.raises(AttributeError, match="frozen"):
            opts.deviceIterations(2)
        # Replicas that share inputs need fewer rows.
        shared = options(d, a, 4).inputReplicaGrouping(2, CommGroupType.Consecutive)
        assert DataLoader(shared, Numbers(400), batch_size=b).combinedBatchSize == (b and b * d * a * (4 // 2))

    @given(st.integers(0, 60), st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), st.booleans())
    def test_items_keep_the_order_of_the_data(self, n: int, b: int, d: int, r: int, drop: bool) -> None:
        loader = DataLoader(options(d=d, r=r), [torch.tensor(i) for i in range(n)], batch_size=b, drop_last=drop)
        c = b * d * r
        expected = [list(range(start, min(start + c, n))) for start in range(0, n, c)]
        if drop and n % c:
            expected.pop()
        assert [item.tolist() for item in loader] == expected
        assert len(loader) == len(expected) == (n // c if drop else -(-n // c))

    @pytest.mark.parametrize(
        ("opts", "samples", "arguments", "lengths", "said"),
        [
            (options(), 101, {"batch_size": 6}, [6] * 16, ""),  # section 2.6: 5 rows are lost
            (options(), 101, {"batch_size": 6, "drop_last": False}, [6] * 16 + [5], r"processed per step (6)"),
            (options(), 12, {"batch_size": 6, "drop_last": False}, [6, 6], ""),
            (options(d=4, a=2), 7, {}, [], "has 7 elements, fewer than the 8 that one step takes"),
            (options(d=4, a=2), 8, {}, [8], ""),
            # 12 samples fill steps of 6 but not steps of 4 processes x 6.
            (options(of=4), 12, {"batch_size": 6, "drop_last": False}, [3], "(24)"),
            # Section 2.7: batches of a sampler.
            (options(d=2, a=2), 20, {"batch_sampler": PAIRS_OF_INDICES}, [8, 8], "last 2 are dropped"),
            (options(d=4), 20, {"batch_sampler": PAIRS_OF_INDICES, "drop_last": False}, [8, 8, 4], "2 are returned"),
            (options(d=5), 20, {"batch_sampler": PAIRS_OF_INDICES}, [10, 10], ""),
        ],
    )
    def test_what_is_left_over_is_warned_of(
        self, caplog: pytest.LogCaptureFixture, opts: Options, samples: int, arguments: Any, lengths: Any, said: str
    ) -> None:
        assert [len(item) for item in DataLoader(opts, Numbers(samples), **arguments)] == lengths
        assert said in caplog.text
        assert bool(said) == bool(caplog.records)

    def test_workers_live_on_unless_told_otherwise(self) -> None:
        loader = DataLoader(options(), Numbers(6))
        loader.terminate()  # has no effect in line
        assert (len(list(loader)), loader.num_workers, loader.persistent_workers) == (6, 0, False)
        assert DataLoader(options(), Numbers(6), num_workers=1).persistent_workers
        assert not DataLoader(options(), Numbers(6), num_workers=1, persistent_workers=False).persistent_workers

    @pytest.mark.parametrize(
        ("dataset", "arguments", "error", "words"),
        [
            (Numbers(9), {"options": Numbers(4)}, AssertionError, r"poptorch\.Options"),
            (Numbers(8), {"batch_sampler": PAIRS_OF_INDICES, "batch_size": 2}, Error, "exclusive with batch_size"),
            (Numbers(8), {"batch_sampler": PAIRS_OF_INDICES, "shuffle": True}, Error, "exclusive with batch_size"),
            (
                Numbers(8), {"batch_sampler": PAIRS_OF_INDICES, "options": options(of=2)}, Error,
                "mutually exclusive with auto_distributed_partitioning=True",
            ),
            (
                Numbers(9), {"batch_size": 4, "mode": DataLoaderMode.AsyncRebatched, "rebatched_worker_size": 5},
                AssertionError, "rebatched_worker_size",
            ),
            (Numbers(9), {"batch_size": None, "mode": DataLoaderMode.AsyncRebatched}, AssertionError, "a batch_size"),
            (
                Numbers(9), {"mode": DataLoaderMode.Async, "async_options": {"rebatched_size": 3}}, AssertionError,
                "rebatched_size",
            ),
            (Numbers(6), {"options": options(of=2), "batch_size": None}, AssertionError, "needs a batch_size"),
            (Numbers(6), {"options": options(of=2), "shuffle": True}, AssertionError, "randomSeed"),
            (Numbers(7), {"options": options(d=2, of=4)}, ZeroDivisionError, "at least 8 are needed"),
            (Stream(8), {"options": options(of=2)}, AssertionError, "not supported for IterableDataset"),
        ],
    )  # fmt: skip
    def test_contradictions(self, dataset: Any, arguments: dict[str, Any], error: type[Exception], words: str) -> None:
        with pytest.raises(error, match=words):
            DataLoader(**{"options": options(), "dataset": dataset, **arguments})


def test_samples_that_cannot_be_concatenated_are_named() -> None:
    with pytest.raises(TypeError, match="cannot be concatenated"):
        next(iter(DataLoader(options(d=2), ["a", "b"], batch_sampler=Lengths(1, 1))))


class Measured(Stream):
    def __len__(self) -> int:
        return self.length


def test_the_length_of_streams_and_workers_that_repeat_them(caplog: pytest.LogCaptureFixture) -> None:
    assert [len(DataLoader(options(), Measured(50), batch_size=8, drop_last=d)) for d in (True, False)] == [6, 7]
    with pytest.raises(TypeError):
        len(DataLoader(options(), Stream(50), batch_size=8))
    loader = DataLoader(options(), Stream(6, divided=False), batch_size=2, num_workers=2)
    assert "will return 2 times each element" in caplog.text
    assert sorted(int(x) for item in loader for x in item) == sorted([0, 1, 2, 3, 4, 5] * 2)


def numbered_chunks(sizes: list[int]) -> list[list[torch.Tensor]]:
    """Chunks of two tensors each, whose rows are numbered through."""
    rows = torch.arange(sum(sizes))
    return [[part, part[:, None] * torch.tensor([10, 20])] for part in rows.split(sizes)]


class TestRebatching:
    """Sections 2.5 and 3.3: the concatenation of all chunks is cut anew."""

    @given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 8), st.booleans())
    def test_items_are_consecutive_rows_of_all_chunks(self, sizes: list[int], rows: int, keep: bool) -> None:
        items = list(glue(numbered_chunks(sizes), rows, keep))
        everything = list(range(sum(sizes)))
        expected = [everything[start : start + rows] for start in range(0, len(everything), rows)]
        if expected and len(expected[-1]) < rows and not keep:
            expected.pop()
        assert [torch.cat([piece[0] for piece in item]).tolist() for item in items] == expected
        for item in items:
            second = torch.cat([piece[1] for piece in item])
            assert torch.equal(second[:, 1], 20 * torch.cat([piece[0] for piece in item]))

    def test_gluing_copies_nothing_and_needs_common_rows(self) -> None:
        (chunk,) = numbered_chunks([6])
        first, second = glue([chunk], 3, False)
        assert first[0][0].data_ptr() == chunk[0].data_ptr()
        assert second[0][0].data_ptr() == chunk[0][3:].data_ptr()
        for wrong in ([torch.zeros(2), torch.zeros(3)], [torch.tensor(1.0)]):
            with pytest.raises(ValueError, match="dimension 0"):
                rows_of(wrong)

    @given(st.integers(0, 10), st.integers(1, 4), st.booleans())
    def test_groups_of_batches_are_concatenated_tensor_by_tensor(self, count: int, group: int, keep: bool) -> None:
        batches = [{"x": torch.full((2,), i), "y": torch.full((2, 1), -i)} for i in range(count)]
        items = list(combined_batch_generator(batches, group, drop_last=not keep))
        assert len(items) == count // group + (keep and count % group > 0)
        for number, item in enumerate(items):
            members = range(number * group, min((number + 1) * group, count))
            assert item["x"].tolist() == [i for i in members for _ in range(2)]
            assert item["y"].flatten().tolist() == [-i for i in members for _ in range(2)]

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
        self, combined: int | None, rebatched: bool, drop: bool, worker_size: int | None, expected: int | None
    ) -> None:
        assert rows_per_chunk(combined, rebatched, drop, worker_size) == expected


class TestShares:
    """Dividing a data set between processes (section 2.9)."""

    @given(st.integers(0, 200), st.integers(1, 7), st.integers(1, 6))
    def test_whole_items_or_an_equal_number_of_samples(self, samples: int, per_item: int, count: int) -> None:
        shares = [share_of(samples, per_item, count, p, drop_last=False) for p in range(count)]
        assert [i for s in shares for i in range(s.start, s.start + s.length)] == list(range(samples))
        assert [s.length - samples // count for s in shares] == [int(p < samples % count) for p in range(count)]
        if samples < per_item * count:
            with pytest.raises(ZeroDivisionError, match="too few"):
                share_of(samples, per_item, count, 0, drop_last=True)
            return
        shares = [share_of(samples, per_item, count, p, drop_last=True) for p in range(count)]
        per = per_item * (samples // (per_item * count))
        assert [(s.start, s.length) for s in shares] == [(p * per, per) for p in range(count)]
        assert all(s.start + s.shift + s.length <= samples for s in shares)

    def test_the_worked_examples(self) -> None:
        # N=10, B=1, D=2, P=2: process 0 sees 0-3, process 1 sees 4-7, and 8 and 9 are never used.
        plain = [DataLoader(options(d=2, process=p, of=2), Numbers(10)) for p in range(2)]
        assert [read(loader) for loader in plain] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert [(len(loader), len(loader.dataset)) for loader in plain] == [(2, 4)] * 2
        # Shuffled, pass 1 reads permutation slots 2-5 and 6-9, pass 2 slots 0-3 and 4-7 of the next permutation.
        shuffled = [DataLoader(options(d=2, process=p, of=2, seed=42), Numbers(10), shuffle=True) for p in range(2)]
        generator = torch.Generator().manual_seed(42)
        for start in (2, 0, 2):
            drawn = torch.randperm(10, generator=generator).tolist()
            assert [read(loader) for loader in shuffled] == [drawn[start : start + 4], drawn[start + 4 : start + 8]]
        # Persistent workers keep their copy of the data set, so the permutation must not live in it.
        loader = DataLoader(options(process=1, of=2, seed=42), Numbers(9), shuffle=True, num_workers=1)
        generator.manual_seed(42)
        first, second = (torch.randperm(9, generator=generator).tolist() for _ in range(2))
        assert [read(loader), read(loader)] == [first[5:9], second[4:8]]
        # The larger example: B=32 on 4 processes with one and with two replicas each.
        for replicas, size, length in ((1, 32, 390), (2, 64, 195)):
            loader = DataLoader(options(r=replicas, process=3, of=4), Numbers(50_000), batch_size=32)
            assert (loader.combinedBatchSize, len(loader)) == (size, length)

    @given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 6), st.booleans())
    def test_shuffled_shares_of_a_pass_never_overlap(self, n: int, per_item: int, count: int, drop: bool) -> None:
        if drop and n < per_item * count:
            return
        parts = [_SubDataset(range(n), options(process=p, of=count, seed=7), per_item, drop) for p in range(count)]
        samplers = [ShuffledPart(part) for part in parts]
        for _ in range(3):
            drawn = [int(index) for sampler in samplers for index in sampler]
            assert len(set(drawn)) == len(drawn) == sum(map(len, samplers))
            assert drop or sorted(drawn) == list(range(n))

    def test_a_part_is_a_sequence_that_can_be_shuffled(self) -> None:
        # 10 samples, 2 processes of 4: the range of process 1 is 4-7, or 6-9 once it is swapped.
        part = _SubDataset(list(range(100, 110)), options(process=1, of=2, seed=5), 2, drop_last=True)
        assert list(part) == [104, 105, 106, 107]
        assert part[-1] == 107
        with pytest.raises(IndexError, match="outside"):
            part[4]
        part.shuffle_global_indices()
        drawn = [100 + i for i in torch.randperm(10, generator=torch.Generator().manual_seed(5)).tolist()]
        for start in (4, 6, 4):
            assert list(part) == drawn[start : start + 4]
            part.swap_range()
        with pytest.raises(AssertionError, match="randomSeed"):
            _SubDataset(range(8), options(of=2), 2, drop_last=True).shuffle_global_indices()

    def test_partitioning_can_be_switched_off_and_is_for_a_sampler(self) -> None:
        for dataset, length, more in (
            (Numbers(6), 6, {}), (Stream(6), 6, {}), (Numbers(20), 10, {"batch_sampler": PAIRS_OF_INDICES}),
        ):  # fmt: skip
            loader = DataLoader(options(process=1, of=2), dataset, auto_distributed_partitioning=False, **more)
            step = 2 if more else 1
            assert [int(item.flatten()[0]) for item in loader] == list(range(0, length * step, step))
