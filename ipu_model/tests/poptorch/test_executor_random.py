"""Random numbers on the device (executor reference, section 13)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from executor_support import Module, inference, quiet, training, with_loss
from torch import nn

import poptorch

ROWS = torch.zeros(4)


def noise(seed: int | None = 7, draw: Any = lambda x: x + torch.rand(x.shape), **settings: Any) -> Any:
    """Return an executor that draws random numbers, with a seed if there is one."""
    if seed is not None:
        settings["randomSeed"] = seed
    return inference(Module(lambda model, x: draw(x)), quiet(**settings))


def dropped() -> Any:
    weight = nn.Parameter(torch.ones(64))
    return with_loss(lambda m, x: nn.functional.dropout(m.weight * x, 0.5, training=True), weight=weight)


class TestSeeds:
    def test_equal_seeds_give_equal_sequences_and_others_do_not(self) -> None:
        """Without a seed two executors differ."""
        first, second, other = noise(7), noise(7), noise(8)
        for _ in range(2):
            drawn = first(ROWS)
            assert torch.equal(drawn, second(ROWS))
            assert not torch.equal(drawn, other(ROWS))
        assert not torch.equal(noise(None)(ROWS), noise(None)(ROWS))

    def test_the_seed_also_seeds_the_host_at_once_but_neither_generator_reaches_the_other(self) -> None:
        executor = noise(11, lambda x: (torch.manual_seed(0), x + torch.rand(x.shape))[1])
        drawn = torch.rand(3)
        torch.manual_seed(11)
        assert torch.equal(drawn, torch.rand(3))
        for drawing in (executor, noise()):
            drawing.compile(ROWS)
            before = torch.get_rng_state()
            assert not torch.equal(drawing(ROWS), drawing(ROWS))
            assert torch.equal(torch.get_rng_state(), before)

    def test_the_stream_advances_across_calls_micro_batches_and_replicas(self) -> None:
        """A replica draws what it would draw without the others."""
        executor = noise(deviceIterations=2, replicationFactor=2)
        beside = executor(ROWS)
        assert len({*beside.tolist(), *executor(ROWS).tolist()}) == 8
        alone = noise(deviceIterations=2)(torch.zeros(2))
        assert torch.equal(beside[::2], alone)  # [device iteration, replica]: every second row is replica 0's

    def test_each_micro_batch_of_a_step_drops_other_elements(self) -> None:
        options = quiet(randomSeed=7, outputMode=poptorch.OutputMode.All, accumulation=4)
        rows = training(dropped(), options)(torch.ones(4, 64))[0]
        assert len({tuple(row.tolist()) for row in rows}) == 4
        assert (rows == 0).float().mean().item() == pytest.approx(0.5, abs=0.15)

    def test_forward_and_backward_use_the_same_mask(self) -> None:
        model = dropped()
        executor = training(model, quiet(randomSeed=7), lr=1.0)
        out, _ = executor(torch.ones(64))
        assert torch.equal(1 - model.weight.detach(), out), "the gradient is 2 where an element was kept"

    def test_distributions_are_those_of_the_host(self) -> None:
        draws_and_means: list[tuple[Any, float]] = [
            (lambda x: torch.rand_like(x), 0.5),
            (lambda x: torch.randn(x.shape), 0.0),
            (lambda x: x.uniform_(2, 4), 3.0),
            (lambda x: torch.bernoulli(torch.full_like(x, 0.3)), 0.3),
            (lambda x: x.random_(3, 6) / 2, 2.0),  # 3, 4 or 5
            (lambda x: x.random_(2**24 - 3, None) - 2**24, -1.5),  # up to 2**24, where float32 stops: -3 to 0
            (lambda x: x.random_(11), 5.0),
            (lambda x: torch.distributions.Normal(torch.zeros(x.shape), 1.0).rsample(), 0.0),
        ]
        results = noise(draw=lambda x: [draw(x * 1) for draw, _ in draws_and_means])(torch.zeros(4000))
        for drawn, (_, mean) in zip(results, draws_and_means, strict=True):
            assert drawn.mean().item() == pytest.approx(mean, abs=0.1)


class TestState:
    def test_before_the_first_run_it_is_what_was_asked_for_then_the_seed_and_the_states_words(self) -> None:
        without, executor = noise(None), noise(5)
        without.compile(ROWS)
        executor.compile(ROWS)
        assert (without.rng_state, executor.rng_state) == (None, [5])
        executor(ROWS)
        seed, *words = executor.rng_state
        assert seed == 5
        assert {type(word) for word in words} == {int}

    @pytest.mark.parametrize("attached", [False, True])
    def test_what_it_cannot_be_leaves_it_as_it_was(self, attached: bool) -> None:
        executor = noise(5)
        executor(ROWS)
        if not attached:
            executor.detachFromDevice()
        state = executor.rng_state
        for wrong, words in (
            ([], "has 0 entries, expected 1 or"),
            (state[:-1], "entries, expected 1 or"),
            ([*state, 0], "entries, expected 1 or"),
            ([0.5], "holds other values"),
            ([*state[:-1], 256], "holds other values"),
            ([*state[:-1], "7"], "holds other values"),
        ):
            with pytest.raises(ValueError, match=words):
                executor.rng_state = wrong
            assert executor.rng_state == state
        executor(ROWS)

    def test_setting_it_repeats_a_sequence(self) -> None:
        """Also in another executor; the list is copied."""
        executor, other = noise(), noise(None)
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
    def test_detaching_does_not_change_the_sequence_but_a_new_compilation_starts_it_again(
        self, explicitly: bool
    ) -> None:
        straight, interrupted = noise(), noise()
        first = straight(ROWS)
        assert torch.equal(first, interrupted(ROWS))
        interrupted.detachFromDevice()
        if explicitly:
            interrupted.attachToDevice()
        assert torch.equal(straight(ROWS), interrupted(ROWS))
        straight.destroy()
        assert torch.equal(straight(ROWS), first)
