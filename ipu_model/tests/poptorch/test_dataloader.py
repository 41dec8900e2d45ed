"""`poptorch.DataLoader` in line, re-batching, and shares of several processes (data reference, section 2).

What is the same in line and in the background is in test_dataloader_async.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loading_datasets import Lengths, Numbers, Stream
from torch.utils.data import BatchSampler, SequentialSampler

from ipu_model.errors import Error
from poptorch._dataloader import DataLoader
from poptorch._dataloader.items import _SubDataset, glue, rows_of
from poptorch._dataloader.loader import rows_per_chunk
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


class TestRebatching:
    """Sections 2.5 and 3.3: the concatenation of all chunks is cut anew."""

    def test_gluing_copies_nothing_and_needs_common_rows(self) -> None:
        chunk = [torch.arange(6), torch.zeros(6, 2)]
        first, second = glue([chunk], 3, False)
        assert first[0][0].data_ptr() == chunk[0].data_ptr()
        assert second[0][0].data_ptr() == chunk[0][3:].data_ptr()
        for wrong in ([torch.zeros(2), torch.zeros(3)], [torch.tensor(1.0)]):
            with pytest.raises(ValueError, match="dimension 0"):
                rows_of(wrong)

    @given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 8), st.booleans())
    def test_items_are_consecutive_rows_of_all_chunks(self, sizes: list[int], rows: int, keep: bool) -> None:
        everything = torch.arange(sum(sizes))
        items = list(glue([[part, -part[:, None]] for part in everything.split(sizes)], rows, keep))
        expected = [part.tolist() for part in everything.split(rows) if keep or len(part) == rows]
        assert [torch.cat([x for x, _ in item]).tolist() for item in items] == [part for part in expected if part]
        assert all(torch.equal(y[:, 0], -x) for item in items for x, y in item)

    def test_when_items_are_rebatched(self) -> None:
        assert rows_per_chunk(8, False, True, None) is None  # plain Async
        assert rows_per_chunk(8, True, True, None) == 8
        assert rows_per_chunk(8, True, True, 3) == 3
        assert rows_per_chunk(8, False, False, None) == 8  # Async that keeps the remainder is re-batched
        assert rows_per_chunk(1, False, False, None) is None  # unless items are single rows
        assert rows_per_chunk(None, False, False, None) is None
        assert rows_per_chunk(8, False, True, 100) is None  # rebatched_worker_size counts only when re-batching


class TestShares:
    """Dividing a data set between processes (section 2.9)."""

    @settings(max_examples=50)
    @given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 6), st.booleans(), st.booleans())
    def test_whole_items_or_an_equal_number_of_samples(self, n: int, b: int, of: int, drop: bool, mix: bool) -> None:
        """In every pass, no process sees a sample of another."""
        if drop and n < b * of:
            with pytest.raises(ZeroDivisionError, match="too few"):
                DataLoader(options(of=of), Numbers(n), batch_size=b)
            return
        given = {"dataset": Numbers(n), "batch_size": b, "drop_last": drop, "shuffle": mix}
        loaders = [DataLoader(options(process=p, of=of, seed=7), **given) for p in range(of)]
        for _ in range(3):
            shares = [read(loader) for loader in loaders]
            samples = [sample for share in shares for sample in share]
            assert len(set(samples)) == len(samples)
            assert mix or samples == sorted(samples)
            if drop:
                assert [len(share) for share in shares] == [b * (n // (b * of))] * of
            else:
                assert sorted(samples) == list(range(n))
                assert [len(share) - n // of for share in shares] == [int(p < n % of) for p in range(of)]

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
