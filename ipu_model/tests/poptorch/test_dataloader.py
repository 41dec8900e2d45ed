"""`poptorch.DataLoader` in line, in the background and for shares of several processes (data reference, section 2)."""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing import forkserver
from typing import Any

import loading_datasets as data
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loading_datasets import Dicts, Lengths, Numbers, Pairs, Stream, pad, row, with_count
from torch.utils.data import BatchSampler, SequentialSampler, get_worker_info

from ipu_model.errors import Error
from poptorch._dataloader import DataLoader
from poptorch._dataloader.items import glue, rows_of
from poptorch._dataloader.worker import _forget_fork_server
from poptorch._utils import registerCustomArgParser
from poptorch.enums import CommGroupType, DataLoaderMode, SharingStrategy
from poptorch.options import Options

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
SYNC, ASYNC, REBATCHED = DataLoaderMode
FORK = {"sharing_strategy": SharingStrategy.Fork}
PAIRS_OF_INDICES = BatchSampler(SequentialSampler(range(20)), batch_size=2, drop_last=True)


def options(d: int = 1, a: int = 1, r: int = 1, process: int = 0, of: int = 1, seed: int | None = None) -> Options:
    opts = Options().deviceIterations(d).replicationFactor(r)
    opts.Training.gradientAccumulation(a)
    opts.Distributed.configureProcessId(process, of)
    return opts if seed is None else opts.randomSeed(seed)


def read(loader: DataLoader) -> list[int]:
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

    @settings(max_examples=50)
    @given(
        n=st.integers(1, 30), b=st.integers(1, 4), d=st.integers(1, 3), drop=st.booleans(),
        mode=st.sampled_from(DataLoaderMode), chunk=st.none() | st.integers(1, 4),
    )  # fmt: skip
    def test_items_keep_the_order_of_the_data(
        self, n: int, b: int, d: int, drop: bool, mode: DataLoaderMode, chunk: int | None
    ) -> None:
        c = b * d
        arguments = {} if chunk is None or mode is SYNC else {"rebatched_worker_size": min(chunk, c)}
        arguments |= {"batch_size": b, "drop_last": drop, "mode": mode}
        expected = [list(range(start, min(start + c, n))) for start in range(0, n, c)]
        if drop and n % c:
            expected.pop()
        if not expected and mode is not SYNC:
            with pytest.raises(Error, match=r"(?s)The Dataset is empty.*worker thread failed to start"):
                load(Pairs(n), d, **arguments)
            return
        loader = load(Pairs(n), d, **arguments)
        for _ in range(2):
            assert [y.tolist() for _, y in copies(loader)] == expected
        assert len(loader) == len(expected)
        assert (loader.combinedBatchSize, loader.batch_size) == (c, c)

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


class TestShares:
    @settings(max_examples=50)
    @given(st.integers(1, 60), st.integers(1, 4), st.integers(2, 6), st.booleans(), st.booleans())
    def test_whole_items_or_an_equal_number_of_samples(self, n: int, b: int, of: int, drop: bool, mix: bool) -> None:
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
        assert plain[1].dataset[-1].tolist() == [7, 7]
        with pytest.raises(IndexError, match="outside"):
            plain[1].dataset[4]
        # Shuffled, pass 1 reads permutation slots 2-5 and 6-9, pass 2 slots 0-3 and 4-7 of the next permutation.
        shuffled = [DataLoader(options(d=2, process=p, of=2, seed=42), Numbers(10), shuffle=True) for p in range(2)]
        generator = torch.Generator().manual_seed(42)
        for start in (2, 0, 2):
            drawn = torch.randperm(10, generator=generator).tolist()
            assert [read(loader) for loader in shuffled] == [drawn[start : start + 4], drawn[start + 4 : start + 8]]
        # Persistent workers and processes keep their copy of the data set, so the permutation must not live in it.
        for where in ({"num_workers": 1}, {"mode": ASYNC, "async_options": FORK}):
            loader = DataLoader(options(process=1, of=2, seed=42), Numbers(9), shuffle=True, **where)
            generator.manual_seed(42)
            first, second = (torch.randperm(9, generator=generator).tolist() for _ in range(2))
            assert [read(loader), read(loader)] == [first[5:9], second[4:8]]
        # The larger example: B=32 on 4 processes with one and with two replicas each.
        for replicas, size, length in ((1, 32, 390), (2, 64, 195)):
            loader = DataLoader(options(r=replicas, process=3, of=4), Numbers(50_000), batch_size=32)
            assert (loader.combinedBatchSize, len(loader)) == (size, length)

    def test_partitioning_can_be_switched_off_and_is_for_a_sampler(self) -> None:
        for dataset, length, more in (
            (Numbers(6), 6, {}), (Stream(6), 6, {}), (Numbers(20), 10, {"batch_sampler": PAIRS_OF_INDICES}),
        ):  # fmt: skip
            loader = DataLoader(options(process=1, of=2), dataset, auto_distributed_partitioning=False, **more)
            step = 2 if more else 1
            assert [int(item.flatten()[0]) for item in loader] == list(range(0, length * step, step))


# In every mode, the asynchronous ones above all.


def load(dataset: Any, device_iterations: int = 1, **arguments: Any) -> DataLoader:
    """Make a loader, asynchronous unless told otherwise, which ends when nobody refers to it."""
    return DataLoader(options(device_iterations), dataset, **{"mode": ASYNC, "async_options": FORK, **arguments})


def copies(loader: DataLoader) -> list[Any]:
    """Return the items of one pass, cloned out of shared memory."""
    return [[x.clone() for x in item] if isinstance(item, list) else item.clone() for item in loader]


@pytest.mark.parametrize(
    ("mode", "strategy"),
    [*((ASYNC, strategy) for strategy in SharingStrategy), (REBATCHED, SharingStrategy.ForkServer)],
)
def test_every_strategy_and_mode_delivers_the_same(mode: DataLoaderMode, strategy: SharingStrategy) -> None:
    """Registered types arrive as themselves."""
    how = {"sharing_strategy": strategy, "early_preload": True, "buffer_size": 2}
    registerCustomArgParser(data.Sample, data.SampleParser())
    try:
        loader = load(Pairs(11), 2, batch_size=2, mode=mode, async_options=how, collate_fn=data.collate_samples)
        for _ in range(2):
            found = [(type(item), item.x.shape, item.y.tolist()) for item in loader]
            assert found == [(data.Sample, (4, 3, 4, 4), [0, 1, 2, 3]), (data.Sample, (4, 3, 4, 4), [4, 5, 6, 7])]
    finally:
        registerCustomArgParser(data.Sample, None)


@pytest.mark.parametrize("mode", [SYNC, ASYNC])
def test_dicts_and_single_samples(mode: DataLoaderMode) -> None:
    (item,) = load(Dicts(4), batch_size=4, mode=mode)
    assert [(name, x.shape[0]) for name, x in item.items()] == [("y", 4), ("x", 4)]
    loader = load(Numbers(3), batch_size=None, mode=mode)
    assert [x.tolist() for x in loader] == [[0, 0], [1, 1], [2, 2]]
    assert (len(loader), loader.combinedBatchSize) == (3, None)


SAMPLER = {"batch_sampler": PAIRS_OF_INDICES}
SHARE = {"options": options(of=2)}
CHUNKS = {"batch_size": 4, "mode": REBATCHED}


@pytest.mark.parametrize(
    ("dataset", "arguments", "error", "words"),
    [
        (Numbers(9), {"options": Numbers(4)}, AssertionError, r"poptorch\.Options"),
        (Numbers(8), {**SAMPLER, "batch_size": 2}, Error, "exclusive with batch_size"),
        (Numbers(8), {**SAMPLER, "shuffle": True}, Error, "exclusive with batch_size"),
        (Numbers(8), {**SAMPLER, **SHARE}, Error, "mutually exclusive with auto_distributed_partitioning=True"),
        (Numbers(9), {**CHUNKS, "rebatched_worker_size": 5}, AssertionError, "rebatched_worker_size"),
        # torch's words
        (Numbers(9), {**CHUNKS, "rebatched_worker_size": 0}, ValueError, "batch_size should be a positive integer"),
        (Numbers(9), {**CHUNKS, "rebatched_worker_size": -1}, ValueError, "batch_size should be a positive integer"),
        (Numbers(9), {**CHUNKS, "batch_size": None}, AssertionError, "a batch_size"),
        (Numbers(9), {"mode": ASYNC, "async_options": {"rebatched_size": 3}}, AssertionError, "rebatched_size"),
        (Numbers(4, lambda i: (row(i), [row(i)])), {}, Error, r"(?s)is not a torch tensor.*worker thread failed to"),
        (Pairs(10), {"collate_fn": data.collate_samples}, Error, "is not a torch tensor but a Sample"),
        (Numbers(6), {**SHARE, "batch_size": None}, AssertionError, "needs a batch_size"),
        (Numbers(6), {**SHARE, "shuffle": True}, AssertionError, "randomSeed"),
        (Numbers(7), {"options": options(d=2, of=4)}, ZeroDivisionError, "at least 8 are needed"),
        (Stream(8), SHARE, AssertionError, "not supported for IterableDataset"),
        (["a", "b"], {"options": options(d=2), "batch_sampler": Lengths(1, 1)}, TypeError, "cannot be concatenated"),
    ],
)
def test_contradictions(dataset: Any, arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    more = {} if "options" in arguments else {"mode": ASYNC, "async_options": FORK}
    with pytest.raises(error, match=words):
        next(iter(DataLoader(**{"options": options(), "dataset": dataset, **more, **arguments})))


@pytest.mark.parametrize(
    ("mode", "drop_last", "lengths"),
    [
        # In line, each of four workers has a remainder of its own.
        (SYNC, True, [8] * 4),
        (SYNC, False, [3, 5, 5, 5, 8, 8, 8, 8]),
        (ASYNC, True, [8] * 4),
        (REBATCHED, True, [8] * 6),
        (REBATCHED, False, [2, *[8] * 6]),
        (ASYNC, False, [2, *[8] * 6]),
    ],
)
def test_remainders(mode: DataLoaderMode, drop_last: bool, lengths: list[int]) -> None:
    arguments: dict[str, Any] = {"num_workers": 4, "mode": mode, "drop_last": drop_last, "worker_init_fn": data.nothing}
    items = copies(load(Stream(50), batch_size=8, **arguments))
    assert sorted(map(len, items)) == lengths
    assert mode is SYNC or [len(item) for item in items[:-1]] == lengths[1:]
    samples = torch.cat(items).tolist()
    assert len(set(samples)) == len(samples) == sum(lengths)


@pytest.mark.parametrize("mode", list(DataLoaderMode))
@pytest.mark.parametrize("drop_last", [True, False])
def test_batch_samplers_work_in_every_mode(mode: DataLoaderMode, drop_last: bool) -> None:
    sampler = BatchSampler(SequentialSampler(range(20)), batch_size=2, drop_last=True)
    loader = load(Pairs(20), 4, batch_sampler=sampler, drop_last=drop_last, mode=mode)
    expected = [list(range(8)), list(range(8, 16)), list(range(16, 20))][: 2 if drop_last else 3]
    for _ in range(2):
        assert [y.tolist() for _, y in copies(loader)] == expected
    assert loader.combinedBatchSize == 8
    assert len(loader) == (10 if mode is SYNC else len(expected))  # in line, the sampler's own length


@pytest.mark.parametrize("mode", [SYNC, ASYNC])
def test_padded_batches_and_scalars(mode: DataLoaderMode, caplog: pytest.LogCaptureFixture) -> None:
    loader = load(Numbers(10), 2, batch_sampler=Lengths(3, 4, 1, 2), collate_fn=pad, mode=mode)
    assert [x[:, 0].tolist() for x in loader] == [[0, 1, 2, 0, 3, 4, 5, 6], [7, 0, 0, 0, 8, 9, 0, 0]]
    assert loader.combinedBatchSize == 1 * 2  # a sampler without batch_size counts as 1
    assert "has no length" in caplog.text
    # Only items of several batches need rows in every tensor.
    loader = load(Numbers(4), batch_sampler=Lengths(2, 2), collate_fn=with_count, mode=mode)
    assert [(x[:, 0].tolist(), int(count)) for x, count in loader] == [([0, 1], 2), ([2, 3], 2)]


@pytest.mark.parametrize("mode", [SYNC, ASYNC])
@pytest.mark.parametrize("error", [TypeError, ValueError, RuntimeError, NotImplementedError])
def test_a_sampler_may_refuse_its_length(mode: Any, error: type[Exception], caplog: pytest.LogCaptureFixture) -> None:
    sampler = data.FixedSize([2, 1, 1, 3, 1, 2], 4, error)
    loader = load(Numbers(6), 2, batch_sampler=sampler, collate_fn=pad, mode=mode, drop_last=False)
    assert "has no length" in caplog.text
    for _ in range(2):
        items = copies(loader)
        assert {len(item) % 4 for item in items} == {0}
        assert sorted(i for item in items for i in item[:, 0].tolist() if i) == [1, 2, 3, 4, 5]
    with pytest.raises(error, match="length is non deterministic"):
        len(loader)


def with_noise(index: int) -> torch.Tensor:
    assert get_worker_info() is not None
    return row(index) + torch.rand(2)


def other_noise(worker: int) -> None:
    torch.manual_seed(torch.initial_seed() + 10 * worker)


@pytest.mark.filterwarnings("ignore:'pin_memory' argument:UserWarning")
@pytest.mark.parametrize("mode", list(DataLoaderMode))
@pytest.mark.parametrize(
    "more",
    [
        {"persistent_workers": True, "prefetch_factor": 1, "timeout": 60},
        {"persistent_workers": False, "worker_init_fn": other_noise, "multiprocessing_context": "fork"},
        {"persistent_workers": True, "sampler": [5, 3, 1, 0], "pin_memory": True},
    ],
    ids=["persistent", "init", "sampler"],
)
def test_other_arguments_are_torchs(mode: DataLoaderMode, more: dict[str, Any]) -> None:
    """Two passes are those of torch's loader with the same arguments, noise of its workers included."""
    common = {"batch_size": 2, "shuffle": "sampler" not in more, "num_workers": 2, **more}
    plain, own = (torch.Generator().manual_seed(3) for _ in range(2))
    expected = torch.utils.data.DataLoader(Numbers(8, with_noise), drop_last=True, generator=plain, **common)
    loader = load(Numbers(8, with_noise), mode=mode, generator=own, **common)
    for _ in range(2):
        torch.testing.assert_close(copies(loader), list(expected), rtol=0, atol=0)


def start_a_worker() -> None:
    """Be a forked loader process whose workers come from a fork server."""
    _forget_fork_server()
    worker = multiprocessing.get_context("forkserver").Process(target=int)
    worker.start()
    worker.join()
    sys.exit(worker.exitcode)


def test_workers_of_a_forked_process_may_come_from_a_fork_server() -> None:
    """Also after the program has used one itself, which is no child of the forked process."""
    # Names of multiprocessing below its public API: see `_forget_fork_server`.
    server = vars(forkserver.ForkServer())
    assert {"_forkserver_address", "_forkserver_alive_fd", "_forkserver_pid"} <= server.keys()
    for context, target in (("forkserver", int), ("fork", start_a_worker)):
        process = multiprocessing.get_context(context).Process(target=target)  # type: ignore[attr-defined]
        process.start()
        process.join()
        assert process.exitcode == 0
