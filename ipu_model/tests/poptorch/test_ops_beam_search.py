"""`ctc_beam_search_decoder` (execution reference, section 11), against a sum over all paths."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import groupby, product
from typing import Any

import pytest
import torch
from function_models import on_device
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import poptorch

STEPS, SAMPLES, CLASSES = 5, 2, 3
SCORES = torch.randn(SAMPLES, STEPS, CLASSES, generator=torch.Generator().manual_seed(3)).log_softmax(-1)
LENGTHS = torch.tensor([5, 3])


def decoder(**settings: int) -> Any:
    """A model that takes `[N, T, C]`, so that the batch comes first."""
    return on_device(lambda m, x, lengths: poptorch.ctc_beam_search_decoder(x.transpose(0, 1), lengths, **settings))


def enumerated(scores: Tensor, blank: int) -> list[tuple[float, tuple[int, ...]]]:
    """All label sequences of one sample with their negative log-probabilities: every path counts, one by one."""
    probability: dict[tuple[int, ...], float] = defaultdict(float)
    rows = scores.double().exp().tolist()
    for path in product(range(scores.shape[1]), repeat=len(rows)):
        labels = tuple(label for label, _ in groupby(path) if label != blank)
        probability[labels] += math.prod(row[label] for row, label in zip(rows, path))
    return sorted((-math.log(p), labels) for labels, p in probability.items())


class TestDecoding:
    @given(blank=st.integers(0, CLASSES - 1), top_paths=st.integers(1, 6), seed=st.integers(0, 99))
    def test_a_beam_that_drops_nothing_finds_the_likeliest_sequences(
        self, blank: int, top_paths: int, seed: int
    ) -> None:
        scores = torch.randn(1, STEPS, CLASSES, generator=torch.Generator().manual_seed(seed)).log_softmax(-1)
        found = decoder(blank=blank, beam_width=200, top_paths=top_paths)(scores, torch.tensor([STEPS]))
        expected = enumerated(scores[0], blank)[:top_paths]
        torch.testing.assert_close(found[0][0], torch.tensor([score for score, _ in expected]))
        assert found[1][0].tolist() == [len(labels) for _, labels in expected]
        assert [row[: len(labels)] for row, (_, labels) in zip(found[2][0].tolist(), expected)] == [
            list(labels) for _, labels in expected
        ]

    def test_samples_end_at_their_own_lengths(self) -> None:
        probabilities, sizes, labels = decoder(top_paths=2)(SCORES, LENGTHS)
        assert [tuple(t.shape) for t in (probabilities, sizes, labels)] == [(2, 2), (2, 2), (2, 2, STEPS)]
        for sample, length in enumerate(LENGTHS.tolist()):
            expected = enumerated(SCORES[sample, :length], 0)[:2]
            torch.testing.assert_close(probabilities[sample], torch.tensor([score for score, _ in expected]))

    def test_behind_a_path_is_minus_one_and_missing_paths_have_no_probability(self) -> None:
        """One step and two classes make two sequences: nothing, and the label."""
        scores = torch.tensor([[[0.75, 0.25]]]).log()
        probabilities, sizes, labels = decoder(top_paths=3)(scores, torch.tensor([1]))
        torch.testing.assert_close(probabilities[0], -torch.tensor([0.75, 0.25, 0.0]).log())
        assert sizes[0].tolist() == [0, 1, 0]
        assert labels[0].tolist() == [[-1], [1], [-1]]

    @given(width=st.integers(1, 30))
    def test_a_narrow_beam_never_finds_more_probability(self, width: int) -> None:
        probability = decoder(beam_width=width)(SCORES, LENGTHS)[0]
        best = torch.tensor([[enumerated(SCORES[n, :length], 0)[0][0]] for n, length in enumerate(LENGTHS.tolist())])
        assert bool((probability >= best - 1e-5).all())

    def test_an_empty_sample_and_impossible_scores_decode_to_nothing(self) -> None:
        nothing = decoder()(SCORES, torch.tensor([0, 0]))
        assert nothing[0].flatten().tolist() == [0.0, 0.0]  # probability one
        impossible = decoder()(torch.full((1, 3, 4), -math.inf), torch.tensor([3]))
        assert impossible[0].item() == math.inf
        assert impossible[1].item() == 0

    def test_half_precision_scores_give_half_precision_probabilities(self) -> None:
        found = decoder()(SCORES.half(), LENGTHS)
        assert found[0].dtype is torch.float16
        torch.testing.assert_close(found[0].float(), decoder()(SCORES, LENGTHS)[0], atol=0.02, rtol=0)


class TestArguments:
    def test_on_the_cpu_the_results_are_zeros_of_the_same_shapes(self) -> None:
        found = poptorch.ctc_beam_search_decoder(SCORES.transpose(0, 1), LENGTHS, top_paths=2)
        expected = decoder(top_paths=2)(SCORES, LENGTHS)
        assert [(t.shape, t.dtype) for t in found] == [(t.shape, t.dtype) for t in expected]
        assert not any(t.any() for t in found)

    @pytest.mark.parametrize("wrong", [
        {"probs": [0.0]}, {"probs": torch.zeros(2, 3)}, {"probs": torch.zeros(2, 2, 3, dtype=torch.int32)},
        {"lengths": [5, 3]}, {"lengths": torch.tensor([5])}, {"lengths": torch.tensor([5.0, 3.0])}, {"blank": 0.0},
        {"blank": CLASSES}, {"blank": -1}, {"beam_width": "9"}, {"top_paths": 0}, {"top_paths": 101},
    ], ids=str)  # fmt: skip
    def test_others_are_refused_by_name(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(poptorch.Error, match=rf"poptorch\.ctc_beam_search_decoder: {next(iter(wrong))} "):
            poptorch.ctc_beam_search_decoder(**{"probs": SCORES.transpose(0, 1), "lengths": LENGTHS, **wrong})
