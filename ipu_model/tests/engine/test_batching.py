"""Batch arithmetic: closed forms of which rows go where and how much comes back (executor reference, sections 6, 7)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipu_model.batching import Batching, Keep, Returns

COUNT = st.integers(1, 5)


@given(d=COUNT, a=COUNT, r=COUNT)
def test_without_groups_every_slice_is_read_exactly_once(d, a, r) -> None:
    batching = Batching(d, a, r)
    read = [batching.slice_index(step, replica) for step in range(d * a) for replica in range(r)]
    assert read == list(range(batching.slices))


@given(d=COUNT, a=COUNT, chunks=COUNT, group=COUNT, orthogonal=st.booleans())
def test_with_groups_each_slice_is_read_by_one_whole_group(d, a, chunks, group, orthogonal) -> None:
    batching = Batching(d, a, chunks * group, group, orthogonal)
    assert batching.slices == d * a * chunks
    for step in range(d * a):
        readers = [batching.slice_index(step, replica) - step * chunks for replica in range(chunks * group)]
        if orthogonal:
            assert readers == [replica % chunks for replica in range(chunks * group)]
        else:
            assert readers == [replica // group for replica in range(chunks * group)]


@pytest.mark.parametrize(
    ("d", "a", "r", "keep", "period", "multiplier"),
    [
        # The shape table of section 7.2, with B taken out.
        (10, 1, 1, Keep.FINAL, 1, 1),
        (10, 1, 1, Keep.SUM, 1, 1),
        (10, 1, 1, Keep.ALL, 1, 10),
        (10, 1, 1, Keep.EVERY_N, 5, 2),
        (4, 8, 2, Keep.FINAL, 1, 2),
        (4, 8, 2, Keep.ALL, 1, 64),
        (4, 8, 2, Keep.EVERY_N, 2, 32),
    ],
)
def test_the_shape_table_of_the_reference(d, a, r, keep, period, multiplier) -> None:
    assert Returns(keep, period).multiplier(Batching(d, a, r)) == multiplier


@given(d=COUNT, a=COUNT, r=COUNT, keep=st.sampled_from([Keep.ALL, Keep.FINAL, Keep.EVERY_N]), data=st.data())
def test_the_multiplier_counts_the_kept_results(d, a, r, keep, data) -> None:
    divisors = [n for n in range(1, d + 1) if d % n == 0]
    returns = Returns(keep, data.draw(st.sampled_from(divisors)) if keep is Keep.EVERY_N else 1)
    batching = Batching(d, a, r)
    kept = sum(returns.kept(step, batching.steps) for step in range(batching.steps))
    assert kept * r == returns.multiplier(batching)
