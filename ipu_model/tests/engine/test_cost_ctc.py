"""CTC loss: recursions of log-adds, one step after another, and how its two ops are costed."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import pytest
import torch
import torch.nn.functional as F
from cost_support import GC200, costed, distinct_phases
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from ipu_model.predict.device import Element
from ipu_model.predict.ops.losses import Alignment, ctc_loss, ctc_loss_gradient
from ipu_model.step import Phase

# 12 steps of two samples with five labels (11 states) out of 7 classes.
SMALL = Alignment(steps=12, samples=2, states=11, classes=7)
HALF, FLOAT = Element.HALF, Element.FLOAT
SIZES = st.integers(1, 300)


class Recogniser(nn.Module):
    """Log probabilities `[T, N, 7]` and their CTC loss, reduced by the test's wrapper."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 7)

    def forward(self, values: Tensor, targets: Tensor) -> Tensor:
        log_probabilities = self.linear(values).log_softmax(-1)
        lengths = torch.full((2,), 12), torch.full((2,), 5)
        losses: Tensor = F.ctc_loss(log_probabilities, targets, *lengths, reduction="none")
        return losses


class TestLoss:
    def test_a_step_is_two_log_adds_and_a_sum_of_every_state(self) -> None:
        """One sample to a tile: 11 states on six workers are one pair each, 23 + 23 + 3 cycles a pair with one load and
        store for all three (less 2 x 2) and two operands more; 11 + 6 x 29 are the calls."""
        more = ctc_loss(GC200, replace(SMALL, steps=13), FLOAT).cycles
        step = 11 + 6 * (29 + 23 + 23 + 3 - 4 + 2)
        looked_up = 12 * 11
        # Another step also looks up 11 more log probabilities, at 21 cycles each for a worker.
        lookup = 6 * 21 * (ceil((looked_up + 11) / 6) - ceil(looked_up / 6))
        assert more.compute - ctc_loss(GC200, SMALL, FLOAT).cycles.compute == pytest.approx(step + lookup)

    def test_a_sample_stays_on_one_tile_while_it_is_small(self) -> None:
        assert ctc_loss(GC200, SMALL, FLOAT).cycles.phases == 1

    def test_a_long_target_is_shared_by_tiles_that_meet_in_every_step(self) -> None:
        long = ctc_loss(GC200, replace(SMALL, states=4001), FLOAT)
        assert long.cycles.phases == 1 + 12
        alone = ctc_loss(GC200, replace(SMALL, states=4001, samples=GC200.chip.tiles), FLOAT)
        assert GC200.total(long.cycles) < GC200.total(alone.cycles)

    def test_samples_on_other_tiles_cost_nothing_more(self) -> None:
        assert ctc_loss(GC200, replace(SMALL, samples=1472), FLOAT).cycles == ctc_loss(GC200, SMALL, FLOAT).cycles

    @given(SIZES, SIZES, SIZES)
    def test_more_of_anything_never_takes_fewer_cycles(self, steps: int, samples: int, states: int) -> None:
        problem = Alignment(steps, samples, states, 30)
        least = GC200.total(ctc_loss(GC200, problem, FLOAT).cycles)
        # States are doubled: 16 of them can be shared by 16 tiles, 15 by 8 only, so one more may take less.
        for more in ({"steps": steps + 1}, {"samples": samples + 1}, {"states": 2 * states}):
            assert GC200.total(ctc_loss(GC200, replace(problem, **more), FLOAT).cycles) >= least

    @given(SIZES, SIZES, SIZES)
    def test_fp16_is_never_slower(self, steps: int, samples: int, states: int) -> None:
        problem = Alignment(steps, samples, states, 30)
        half, full = (GC200.total(ctc_loss(GC200, problem, kind).cycles) for kind in (HALF, FLOAT))
        assert half <= full


class TestGradient:
    @given(SIZES, SIZES, SIZES)
    def test_it_repeats_the_recursion_and_adds_one_backwards(self, steps: int, samples: int, states: int) -> None:
        problem = Alignment(steps, samples, states, 30)
        once, gradient = (work(GC200, problem, FLOAT) for work in (ctc_loss, ctc_loss_gradient))
        assert GC200.total(gradient.cycles) > 1.8 * GC200.total(once.cycles)
        assert gradient.temporary_bytes >= once.temporary_bytes - 2 * problem.states * 4


class TestOps:
    @pytest.mark.parametrize("targets", [torch.ones(2, 5), torch.ones(10)], ids=["rows", "all in one row"])
    def test_both_ops_have_formulas(self, targets: Tensor) -> None:
        found = costed(Recogniser(), torch.zeros(12, 2, 8), targets.int())
        assert not found.fallbacks
        forward, backward = (
            next(op for op in found.of(phase=phase) if "ctc" in op.target) for phase in (Phase.FORWARD, Phase.BACKWARD)
        )
        assert forward.work == ctc_loss(GC200, SMALL, FLOAT)
        assert backward.work == ctc_loss_gradient(GC200, SMALL, FLOAT)

    def test_the_code_of_a_step_exists_once_however_many_there_are(self) -> None:
        """2,000 labels are shared by tiles, which exchange in every step; nothing else of this model exchanges more."""
        phases = [
            distinct_phases(Recogniser(), torch.zeros(steps, 2, 8), torch.ones(2, 2000).int()) for steps in (12, 120)
        ]
        assert phases[1] - phases[0] < 12
