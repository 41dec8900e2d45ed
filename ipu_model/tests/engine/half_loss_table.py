"""Every loss that PopTorch marks by itself, with its three reductions (`ipu_model.capture.losses`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.nn.functional as F
from half_cases import Case, below_one, integers, normal
from torch import Tensor

REDUCTIONS = ("mean", "sum", "none")


def losses() -> list[Case]:
    """Each loss with each reduction; targets are inputs that get no gradient."""
    return [
        Case(f"{name} {reduction}", partial(function, reduction=reduction), weights, inputs)
        for name, function, weights, inputs in _losses()
        for reduction in REDUCTIONS
    ]


def _losses() -> list[tuple[str, Callable[..., Any], dict[str, Tensor], dict[str, Tensor]]]:
    x, logits = {"input": normal(12, 10)}, normal(12, 10)
    classes, signs = integers(10, 12), (integers(2, 12) * 2 - 1).half()
    rows, labels = {"input1": normal(12), "input2": normal(12)}, integers(2, 12, 10).half()
    shares = {"target": below_one(12, 10)}
    pair = {"input1": normal(12, 10), "input2": normal(12, 10)}
    log_probabilities = {"input": F.log_softmax(logits.float(), 1).half()}
    return [
        ("l1_loss", F.l1_loss, x, {"target": logits}),
        ("mse_loss", F.mse_loss, x, {"target": logits}),
        ("smooth_l1_loss", F.smooth_l1_loss, x, {"target": logits}),
        ("cross_entropy", F.cross_entropy, x, {"target": classes}),
        ("cross_entropy smoothed", partial(F.cross_entropy, label_smoothing=0.1), x, {"target": classes}),
        ("nll_loss", F.nll_loss, log_probabilities, {"target": classes}),
        ("binary_cross_entropy", F.binary_cross_entropy, {"input": below_one(12, 10)}, shares),
        ("binary_cross_entropy_with_logits", F.binary_cross_entropy_with_logits, x, shares),
        ("kl_div", F.kl_div, log_probabilities, shares),
        ("poisson_nll_loss", F.poisson_nll_loss, x, {"target": integers(5, 12, 10).half()}),
        ("hinge_embedding_loss", F.hinge_embedding_loss, {"input": normal(12)}, {"target": signs}),
        ("cosine_embedding_loss", F.cosine_embedding_loss, pair, {"target": signs}),
        ("soft_margin_loss", F.soft_margin_loss, {"input": normal(12)}, {"target": signs}),
        ("multilabel_soft_margin_loss", F.multilabel_soft_margin_loss, x, {"target": labels}),
        ("margin_ranking_loss", F.margin_ranking_loss, rows, {"target": signs}),
        ("triplet_margin_loss", F.triplet_margin_loss, {"anchor": normal(12, 10), "positive": normal(12, 10)},
         {"negative": normal(12, 10)}),
        ("ctc_loss", _ctc, {"logits": normal(9, 3, 6)}, {"targets": integers(5, 3, 4) + 1}),
    ]  # fmt: skip


def _ctc(logits: Tensor, targets: Tensor, reduction: str) -> Tensor:
    log_probabilities = F.log_softmax(logits, 2)
    return F.ctc_loss(log_probabilities, targets, (9, 9, 8), (4, 3, 4), reduction=reduction)
