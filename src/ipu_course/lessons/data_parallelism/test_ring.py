"""Lesson 10's ring: what it hands on and counts, and that its check accepts exactly the all-reduces of least cost."""

from __future__ import annotations

import pytest
import torch

from ipu_course.lessons.data_parallelism.ring import Held, PassOn, Ring, least_share, ring_hint
from ipu_course.lessons.data_parallelism.ring_figure import bytes_sent, ring_steps


def drawn_all_reduce(held: Held, pass_on: PassOn) -> None:
    """Do what the lesson's drawing shows, step by step."""
    n = len(held)
    for step in ring_steps(n):
        received = pass_on([held[replica][step.sends[replica]] for replica in range(n)])
        for replica in range(n):
            part = step.sends[replica - 1]
            held[replica][part] = received[replica] + (
                held[replica][part] if step.phase == "reduce-scatter" else torch.zeros(())
            )


def test_each_replica_receives_what_the_one_before_it_sent() -> None:
    ring = Ring(3)
    received = ring.pass_on([torch.full((2,), float(replica)) for replica in range(3)])
    assert [each.tolist() for each in received] == [[2, 2], [0, 0], [1, 1]]
    assert ring.sent == [2, 2, 2]


def test_what_arrives_is_a_copy() -> None:
    parts = [torch.zeros(1), torch.zeros(1)]
    received = Ring(2).pass_on(parts)
    received[1] += 1
    assert parts[0].item() == 0


def test_a_message_from_some_replicas_only_is_refused() -> None:
    with pytest.raises(ValueError, match="each of the 4 replicas, not 1"):
        Ring(4).pass_on([torch.zeros(1)])


@pytest.mark.parametrize("replicas", [2, 3, 4, 16])
def test_the_least_share_is_what_the_drawing_sends(replicas: int) -> None:
    assert least_share(replicas) == pytest.approx(bytes_sent(ring_steps(replicas), replicas, 1.0))


def test_the_all_reduce_of_the_drawing_is_right() -> None:
    assert ring_hint(drawn_all_reduce) is None


def test_sums_in_the_wrong_place_are_noticed() -> None:
    def rotated(held: Held, pass_on: PassOn) -> Held:
        drawn_all_reduce(held, pass_on)
        return [parts[1:] + parts[:1] for parts in held]

    assert "in the wrong place" in str(ring_hint(rotated))


@pytest.mark.parametrize("result", [[], [[torch.zeros(1)]], 7, [[1.0] * 4] * 4])
def test_a_result_of_another_form_has_a_hint(result: object) -> None:
    assert "held needs 4 parts" in str(ring_hint(lambda held, pass_on: result))


def test_what_is_no_function_has_a_hint() -> None:
    assert "is a function" in str(ring_hint(7))
