"""The device's random streams: apart from the host's, one for each replica, resumable."""

from __future__ import annotations

import pytest
import torch

from ipu_model.compute.randomness import RandomStreams


def draw(streams: RandomStreams, replica: int = 0) -> list[float]:
    with streams.drawing(replica):
        return torch.rand(4).tolist()


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others() -> None:
    assert draw(RandomStreams(1, 1)) == draw(RandomStreams(1, 1))
    assert draw(RandomStreams(1, 1)) != draw(RandomStreams(2, 1))


def test_replicas_differ_and_streams_advance() -> None:
    streams = RandomStreams(1, 2)
    assert draw(streams, 0) != draw(streams, 1)
    assert draw(streams, 0) != draw(streams, 0)


def test_the_hosts_generator_is_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    draw(RandomStreams(1, 1))
    assert torch.equal(torch.rand(3), expected)


def test_a_restored_state_continues_where_it_was_saved() -> None:
    streams = RandomStreams(1, 2)
    draw(streams, 1)
    state = streams.state()
    assert state[0] == 1
    following = draw(streams, 1)
    other = RandomStreams(9, 2)
    other.restore(state)
    assert draw(other, 1) == following


def test_a_state_of_one_number_is_a_seed() -> None:
    streams = RandomStreams(1, 2)
    streams.restore([2])
    assert draw(streams) == draw(RandomStreams(2, 2))


def test_replicas_of_several_processes_draw_what_they_would_draw_in_one() -> None:
    together, here = RandomStreams(1, 4), RandomStreams(1, 2, first=2)
    assert [draw(here, 0), draw(here, 1)] == [draw(together, 2), draw(together, 3)]
    here.restore([5])
    assert draw(here, 0) == draw(RandomStreams(5, 4), 2)


def test_a_state_for_another_number_of_replicas_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 1 or"):
        RandomStreams(1, 2).restore(RandomStreams(1, 1).state())
