"""Rules for connectionist temporal classification: loss and decoding are ops of a captured graph of our own.

See `ipu_model.capture.device_ops.ctc` and `ipu_model.capture.device_ops.ctc`.
"""

from __future__ import annotations

import math

from ipu_model.cost import beam_search, ctc
from ipu_model.cost.beam_search import BeamSearch
from ipu_model.cost.ctc import Alignment
from ipu_model.lower.view import OpView, Result, Rule, result


def rules() -> dict[str, Rule]:
    """Return the rules of the loss, of its gradient and of decoding."""
    return {
        "ctc_loss": lower_ctc_loss,
        "ctc_loss_backward": lower_ctc_loss_gradient,
        "ctc_beam_search": lower_beam_search,
    }


def lower_ctc_loss(op: OpView) -> Result:
    """Cost the loss of each sample."""
    return result(op, ctc.loss(op.device, _alignment(op, 0), op.needed(0).element))


def lower_ctc_loss_gradient(op: OpView) -> Result:
    """Cost the gradient of the log probabilities."""
    return result(op, ctc.loss_gradient(op.device, _alignment(op, 1), op.needed(1).element))


def lower_beam_search(op: OpView) -> Result:
    """Cost the best paths of each sample."""
    source = op.needed(0)
    steps, samples, classes = source.shape
    problem = BeamSearch(steps, samples, classes, int(op.argument(3)), int(op.argument(4)))
    return result(op, beam_search.decoded(op.device, problem, source.element))


def _alignment(op: OpView, first: int) -> Alignment:
    """Return what is aligned, from log probabilities `[T, N, C]` and targets `[N, S]` or all in one row."""
    steps, samples, classes = op.needed(first).shape
    targets = op.needed(first + 1)
    labels = targets.shape[1] if len(targets.shape) == 2 else math.ceil(targets.elements / max(1, samples))
    return Alignment(steps, samples, 2 * labels + 1, classes)
