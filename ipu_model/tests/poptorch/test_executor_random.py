"""Random numbers on the device (executor reference, section 13)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from executor_support import Module, inference, quiet, training
from torch import Tensor, nn

import poptorch

ROWS = torch.zeros(4)


def noise(draw: Any = lambda x: x + torch.rand(x.shape)) -> nn.Module:
    return Module(lambda model, x: draw(x))


def dropped() -> Any:
    def forward(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        out = nn.functional.dropout(model.weight * x, 0.5, training=True)
        return out, poptorch.identity_loss(out, "sum")

    return Module(forward, weight=nn.Parameter(torch.ones(64)))


def seeded(seed: int = 7) -> poptorch.Options:
    return quiet().randomSeed(seed)


def test_the_seed_also_seeds_the_host_at_once() -> None:
    seeded(11)
    drawn = torch.rand(3)
    torch.manual_seed(11)
    assert torch.equal(drawn, torch.rand(3))


def test_equal_seeds_give_equal_sequences_and_others_do_not() -> None:
    first, second, other = (inference(noise(), seeded(seed)) for seed in (7, 7, 8))
    for _ in range(2):
        drawn = first(ROWS)
        assert torch.equal(drawn, second(ROWS))
        assert not torch.equal(drawn, other(ROWS))


def test_without_a_seed_two_executors_differ() -> None:
    assert not torch.equal(inference(noise())(ROWS), inference(noise())(ROWS))


def test_the_stream_advances_across_calls_micro_batches_and_replicas() -> None:
    executor = inference(noise(), seeded().deviceIterations(2).replicationFactor(2))
    drawn = [*executor(ROWS).tolist(), *executor(ROWS).tolist()]
    assert len(set(drawn)) == 8


def test_a_replica_draws_what_it_would_draw_without_the_others() -> None:
    alone = inference(noise(), seeded().deviceIterations(2))(torch.zeros(2))
    beside = inference(noise(), seeded().deviceIterations(2).replicationFactor(2))(ROWS)
    assert torch.equal(beside[::2], alone)  # [device iteration, replica]: every second row is replica 0's


def test_each_micro_batch_of_a_step_drops_other_elements() -> None:
    options = seeded().outputMode(poptorch.OutputMode.All)
    options.Training.gradientAccumulation(4)
    rows = training(dropped(), options)(torch.ones(4, 64))[0]
    assert len({tuple(row.tolist()) for row in rows}) == 4
    assert (rows == 0).float().mean().item() == pytest.approx(0.5, abs=0.15)


def test_forward_and_backward_use_the_same_mask() -> None:
    model = dropped()
    executor = training(model, seeded(), lr=1.0)
    out, _ = executor(torch.ones(64))
    assert torch.equal(1 - model.weight.detach(), out), "the gradient is 2 where an element was kept"


def test_the_hosts_generator_is_left_alone() -> None:
    executor = inference(noise(), seeded())
    before = torch.get_rng_state()
    executor(ROWS)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_hosts_generator_does_not_reach_the_device() -> None:
    executor = inference(noise(lambda x: (torch.manual_seed(0), x + torch.rand(x.shape))[1]), seeded())
    assert not torch.equal(executor(ROWS), executor(ROWS))


@pytest.mark.parametrize(
    ("draw", "mean"),
    [
        (lambda x: torch.rand_like(x), 0.5), (lambda x: torch.randn(x.shape), 0.0),
        (lambda x: x.uniform_(2, 4), 3.0),
        (lambda x: torch.bernoulli(torch.full_like(x, 0.3)), 0.3),
        (lambda x: x.random_(3, 6) / 2, 2.0),  # 3, 4 or 5
        (lambda x: x.random_(2**24 - 3, None) - 2**24, -1.5),  # up to 2**24, where float32 stops: -3 to 0
        (lambda x: x.random_(11), 5.0),
        (lambda x: torch.distributions.Normal(torch.zeros(x.shape), 1.0).rsample(), 0.0),
    ],
)  # fmt: skip
def test_distributions_are_those_of_the_host(draw: Any, mean: float) -> None:
    drawn = inference(noise(lambda x: draw(x * 1)), seeded())(torch.zeros(4000))
    assert drawn.mean().item() == pytest.approx(mean, abs=0.1)


class TestState:
    def test_before_the_first_run_it_is_what_was_asked_for_then_the_seed_and_the_states_words(self) -> None:
        without, executor = inference(noise()), inference(noise(), seeded(5))
        without.compile(ROWS)
        executor.compile(ROWS)
        assert (without.rng_state, executor.rng_state) == (None, [5])
        executor(ROWS)
        state = executor.rng_state
        assert state is not None
        assert state[0] == 5
        assert len(state) > 1
        assert all(type(word) is int for word in state)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda state: [], "has 0 entries, expected 1 or"),
            (lambda state: state[:-1], "entries, expected 1 or"),
            (lambda state: [*state, 0], "entries, expected 1 or"),
            (lambda state: [0.5], "holds other values"),
            (lambda state: [*state[:-1], 256], "holds other values"),
            (lambda state: [*state[:-1], "7"], "holds other values"),
        ],
        ids=["empty", "short", "long", "fraction", "no byte", "text"],
    )
    @pytest.mark.parametrize("attached", [False, True])
    def test_what_it_cannot_be_leaves_it_as_it_was(self, change: Any, words: str, attached: bool) -> None:
        executor = inference(noise(), seeded(5))
        executor(ROWS)
        if not attached:
            executor.detachFromDevice()
        state = executor.rng_state
        with pytest.raises(ValueError, match=words):
            executor.rng_state = change(state)
        assert executor.rng_state == state
        executor(ROWS)

    def test_setting_it_repeats_a_sequence(self) -> None:
        """Also in another executor; the list is copied."""
        executor, other = inference(noise(), seeded()), inference(noise())
        executor(ROWS)
        state = executor.rng_state
        second = executor(ROWS)
        other.compile(ROWS)
        for one in (executor, other):
            one.rng_state = state
        state.append(4)
        assert torch.equal(executor(ROWS), second)
        assert torch.equal(other(ROWS), second)

    @pytest.mark.parametrize("explicitly", [False, True])
    def test_detaching_in_the_middle_does_not_change_the_sequence(self, explicitly: bool) -> None:
        straight, interrupted = inference(noise(), seeded()), inference(noise(), seeded())
        assert torch.equal(straight(ROWS), interrupted(ROWS))
        interrupted.detachFromDevice()
        if explicitly:
            interrupted.attachToDevice()
        assert torch.equal(straight(ROWS), interrupted(ROWS))

    def test_a_new_compilation_starts_from_the_seed(self) -> None:
        executor = inference(noise(), seeded())
        first = executor(ROWS)
        executor(ROWS)
        executor.destroy()
        assert torch.equal(executor(ROWS), first)
