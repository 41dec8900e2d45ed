"""Dividing a data set between processes (data reference, section 2.9)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loading_datasets import Numbers, Stream

from poptorch._dataloader import DataLoader
from poptorch._dataloader.partition import ShuffledPart, _SubDataset, share_of
from poptorch.options import Options

processes = st.integers(1, 6)


def options(process: int, of: int, device_iterations: int = 1, seed: int | None = None) -> Options:
    opts = Options()
    opts.deviceIterations(device_iterations)
    opts.Distributed.configureProcessId(process, of)
    if seed is not None:
        opts.randomSeed(seed)
    return opts


def read(loader: DataLoader) -> list[int]:
    """Return the samples of one pass, by number."""
    return [int(sample) for item in loader for sample in item[:, 0]]


@given(st.integers(0, 200), st.integers(1, 7), processes)
def test_dropping_gives_every_process_the_same_whole_items(samples: int, per_item: int, count: int) -> None:
    if samples < per_item * count:
        with pytest.raises(ZeroDivisionError, match="too few"):
            share_of(samples, per_item, count, 0, drop_last=True)
        return
    shares = [share_of(samples, per_item, count, p, drop_last=True) for p in range(count)]
    per = per_item * (samples // (per_item * count))
    assert [(share.start, share.length) for share in shares] == [(p * per, per) for p in range(count)]
    assert all(share.start + share.shift + share.length <= samples for share in shares)


@given(st.integers(0, 200), st.integers(1, 7), processes)
def test_keeping_divides_every_sample_to_within_one(samples: int, per_item: int, count: int) -> None:
    shares = [share_of(samples, per_item, count, p, drop_last=False) for p in range(count)]
    assert [i for s in shares for i in range(s.start, s.start + s.length)] == list(range(samples))
    assert [s.length - samples // count for s in shares] == [int(p < samples % count) for p in range(count)]


def test_the_worked_example_without_shuffling() -> None:
    # N=10, B=1, D=2, P=2: process 0 sees 0-3, process 1 sees 4-7, and 8 and 9 are never used.
    loaders = [DataLoader(options(p, 2, device_iterations=2), Numbers(10)) for p in range(2)]
    assert [read(loader) for loader in loaders] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [len(loader) for loader in loaders] == [2, 2]
    assert [len(loader.dataset) for loader in loaders] == [4, 4]


def test_the_worked_example_with_shuffling() -> None:
    # Pass 1 reads permutation slots 2-5 and 6-9, pass 2 slots 0-3 and 4-7 of the next permutation.
    loaders = [
        DataLoader(options(p, 2, device_iterations=2, seed=42), Numbers(10), shuffle=True) for p in range(2)
    ]  # fmt: skip
    generator = torch.Generator().manual_seed(42)
    first, second, third = (torch.randperm(10, generator=generator).tolist() for _ in range(3))
    assert [read(loader) for loader in loaders] == [first[2:6], first[6:10]]
    assert [read(loader) for loader in loaders] == [second[0:4], second[4:8]]
    assert [read(loader) for loader in loaders] == [third[2:6], third[6:10]]


@given(st.integers(1, 60), st.integers(1, 4), processes, st.booleans())
def test_shuffled_shares_of_a_pass_never_overlap(n: int, per_item: int, count: int, drop: bool) -> None:
    if drop and n < per_item * count:
        return
    parts = [_SubDataset(range(n), options(p, count, seed=7), per_item, drop) for p in range(count)]
    samplers = [ShuffledPart(part) for part in parts]
    for _ in range(3):
        drawn = [int(index) for sampler in samplers for index in sampler]
        assert len(set(drawn)) == len(drawn) == sum(map(len, samplers))
        assert drop or sorted(drawn) == list(range(n))


def test_torch_workers_see_every_new_permutation() -> None:
    # Persistent workers keep their copy of the data set, so the permutation must not live in it.
    loader = DataLoader(options(1, 2, seed=3), Numbers(9), shuffle=True, num_workers=1)
    generator = torch.Generator().manual_seed(3)
    first, second = (torch.randperm(9, generator=generator).tolist() for _ in range(2))
    assert read(loader) == first[5:9]
    assert read(loader) == second[4:8]


def test_a_part_is_a_sequence_of_its_own() -> None:
    view = _SubDataset(list(range(100, 110)), options(1, 2), 2, drop_last=True)
    assert list(view) == [104, 105, 106, 107]
    assert view[-1] == 107
    with pytest.raises(IndexError, match="outside"):
        view[4]


def test_a_shuffled_part_reads_its_range_of_the_permutation() -> None:
    # 10 samples, 2 processes of 4: the range of process 1 is 4-7, or 6-9 once it is swapped.
    part = _SubDataset(list(range(100, 110)), options(1, 2, seed=5), 2, drop_last=True)
    part.shuffle_global_indices()
    drawn = [100 + i for i in torch.randperm(10, generator=torch.Generator().manual_seed(5)).tolist()]
    assert list(part) == drawn[4:8]
    part.swap_range()
    assert list(part) == drawn[6:10]
    part.swap_range()
    assert list(part) == drawn[4:8]


def test_a_part_without_a_seed_is_not_shuffled() -> None:
    with pytest.raises(AssertionError, match="randomSeed"):
        _SubDataset(range(8), options(0, 2), 2, drop_last=True).shuffle_global_indices()


def test_fifty_thousand_samples_on_four_processes() -> None:
    # The larger example: B=32 on 4 processes with one and with two replicas each.
    plain = DataLoader(options(3, 4), Numbers(50_000), batch_size=32)
    with_replicas = options(3, 4)
    with_replicas.replicationFactor(2)
    doubled = DataLoader(with_replicas, Numbers(50_000), batch_size=32)
    assert (plain.combinedBatchSize, len(plain)) == (32, 390)
    assert (doubled.combinedBatchSize, len(doubled)) == (64, 195)


def test_partitioning_can_be_switched_off() -> None:
    loader = DataLoader(options(1, 2), Numbers(6), auto_distributed_partitioning=False)
    assert read(loader) == list(range(6))


def test_partitioning_needs_a_batch_size() -> None:
    with pytest.raises(AssertionError, match="needs a batch_size"):
        DataLoader(options(0, 2), Numbers(6), batch_size=None)


def test_shuffling_needs_a_common_seed() -> None:
    with pytest.raises(AssertionError, match="randomSeed"):
        DataLoader(options(0, 2), Numbers(6), shuffle=True)


def test_too_few_samples_for_the_processes() -> None:
    with pytest.raises(ZeroDivisionError, match="at least 8 are needed"):
        DataLoader(options(0, 4, device_iterations=2), Numbers(7))


def test_an_iterable_cannot_be_partitioned() -> None:
    with pytest.raises(AssertionError, match="not supported for IterableDataset"):
        DataLoader(options(0, 2), Stream(8))
    own = DataLoader(options(0, 2), Stream(8), auto_distributed_partitioning=False)
    assert len(list(own)) == 8
