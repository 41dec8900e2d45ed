"""Connectionist temporal classification as ops of the graph: PyTorch's own cannot be traced without data.

The backward op repeats the forward recursion instead of keeping it. Decoding (Graves, Supervised Sequence Labelling
with Recurrent Neural Networks, 2012, section 7.5) adds up paths that give the same labels, and the best prefixes go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

aten = torch.ops.aten

# What `torch.ctc_loss` takes instead of the words of `torch.nn.functional.ctc_loss`.
_REDUCTIONS = {0: "none", 1: "mean", 2: "sum"}


def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int], blank: int = 0, reduction: str | int = "mean",
    zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    """Compute `F.ctc_loss`: `log_probs` `[T, N, C]` or `[T, C]`, `targets` `[N, S]` or in one row, lengths `[N]`."""
    batched = log_probs if log_probs.dim() == 3 else log_probs.unsqueeze(1)
    lengths = [
        (value if isinstance(value, Tensor) else torch.tensor(value, device=batched.device)).reshape(-1)
        for value in (input_lengths, target_lengths)
    ]
    losses: Tensor = torch.ops.ipu_model.ctc_loss(batched, targets, *lengths, blank, zero_infinity)
    reduction = _REDUCTIONS.get(reduction, "none") if isinstance(reduction, int) else reduction
    if reduction == "mean":
        return (losses / lengths[1].clamp(min=1)).mean()
    if reduction == "sum":
        return losses.sum()
    return losses if log_probs.dim() == 3 else losses.squeeze(0)


_ARGUMENTS = (
    "Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank, bool zero_infinity"
)


@torch.library.custom_op("ipu_model::ctc_loss", mutates_args=(), schema=f"({_ARGUMENTS}) -> Tensor")
def _forward(*arguments: Any) -> Tensor:
    losses: Tensor
    losses, _ = aten._ctc_loss.Tensor(*arguments)
    return losses.masked_fill(losses == torch.inf, 0.0) if arguments[-1] else losses.clone()


@torch.library.custom_op(
    "ipu_model::ctc_loss_backward", mutates_args=(), schema=f"(Tensor gradient, {_ARGUMENTS}) -> Tensor"
)
def _backward(gradient: Tensor, *arguments: Any) -> Tensor:
    saved = aten._ctc_loss.Tensor(*arguments)
    result: Tensor = aten._ctc_loss_backward.Tensor(gradient.contiguous(), *arguments[:4], *saved, *arguments[4:])
    return result


@_forward.register_fake
def _(log_probs: Tensor, *rest: Any) -> Tensor:
    return log_probs.new_empty(log_probs.shape[1])


@_backward.register_fake
def _(gradient: Tensor, log_probs: Tensor, *rest: Any) -> Tensor:
    return torch.empty_like(log_probs, memory_format=torch.contiguous_format)


def _keep_arguments(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.settings = inputs[4:]


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return torch.ops.ipu_model.ctc_loss_backward(gradient, *ctx.saved_tensors, *ctx.settings), *[None] * 5


_forward.register_autograd(_gradients, setup_context=_keep_arguments)


Floats = NDArray[np.float64]
Decoded = tuple[Tensor, Tensor, Tensor]


def beam_search(log_probabilities: Tensor, lengths: Tensor, blank: int, beam_width: int, top_paths: int) -> Decoded:
    """Return each sample's best label sequences: negative log probabilities, lengths, and labels, the likeliest first.

    `log_probabilities` are `[T, N, C]`, the results `[N, top_paths]` twice and `[N, top_paths, T]`. -1 fills what is
    behind a path; paths that do not exist are empty.
    """
    source = log_probabilities.detach()
    decoded: Decoded = torch.ops.ipu_model.ctc_beam_search(source, lengths, blank, beam_width, top_paths)
    return decoded


@torch.library.custom_op("ipu_model::ctc_beam_search", mutates_args=())
def _search(log_probabilities: Tensor, lengths: Tensor, blank: int, beam_width: int, top_paths: int) -> Decoded:
    steps, samples, _ = log_probabilities.shape
    values = log_probabilities.double().numpy()
    scores = np.full((samples, top_paths), np.inf)
    sizes = np.zeros((samples, top_paths), np.int32)
    labels = np.full((samples, top_paths, steps), -1, np.int32)
    for sample, length in enumerate(lengths.tolist()):
        beam = _Beam([()], np.zeros(1), np.full(1, -np.inf))
        for row in values[: max(0, int(length)), sample]:
            beam = _advanced(beam, row, blank, beam_width)
        total = beam.total
        best = [index for index in np.argsort(-total, kind="stable") if total[index] > -np.inf]
        for rank, index in enumerate(best[:top_paths]):
            path = beam.prefixes[index]
            scores[sample, rank], sizes[sample, rank] = -total[index], len(path)
            labels[sample, rank, : len(path)] = path
    return torch.from_numpy(scores).to(log_probabilities.dtype), torch.from_numpy(sizes), torch.from_numpy(labels)


@_search.register_fake
def _(log_probabilities: Tensor, lengths: Tensor, blank: int, beam_width: int, top_paths: int) -> Decoded:
    steps, samples, _ = log_probabilities.shape
    return (
        log_probabilities.new_empty(samples, top_paths),
        log_probabilities.new_empty(samples, top_paths, dtype=torch.int32),
        log_probabilities.new_empty(samples, top_paths, steps, dtype=torch.int32),
    )


class _Beam(NamedTuple):
    """The prefixes under way, and log probabilities of paths that end in a blank, and that do not."""

    prefixes: list[tuple[int, ...]]
    blank: Floats
    label: Floats

    @property
    def total(self) -> Floats:
        return np.logaddexp(self.blank, self.label)


def _advanced(beam: _Beam, row: Floats, blank: int, width: int) -> _Beam:
    """Return the best `width` prefixes after one more time step with log probabilities `row` `[C]`."""
    last = np.array([prefix[-1] if prefix else -1 for prefix in beam.prefixes], np.int64)
    total, named = beam.total, last >= 0
    stays_blank = total + row[blank]
    stays_label = np.where(named, beam.label + row[last], -np.inf)
    grows = total[:, None] + row[None, :]
    # A label directly behind itself is a repeat unless a blank came between.
    grows[named, last[named]] = beam.blank[named] + row[last[named]]
    grows[:, blank] = -np.inf
    places = {prefix: place for place, prefix in enumerate(beam.prefixes)}
    for prefix, place in places.items():
        parent = places.get(prefix[:-1])
        if prefix and parent is not None:
            stays_label[place] = np.logaddexp(stays_label[place], grows[parent, last[place]])
            grows[parent, last[place]] = -np.inf
    # Those that stay come first, then those that grow by a label.
    candidates = np.concatenate([np.logaddexp(stays_blank, stays_label), grows.ravel()])
    best = np.argsort(-candidates, kind="stable")[:width]
    best = best[candidates[best] > -np.inf]
    stay, grow = best[best < len(last)], best[best >= len(last)] - len(last)
    parents, labels = np.divmod(grow, grows.shape[1])
    return _Beam(
        [beam.prefixes[p] for p in stay] + [(*beam.prefixes[p], int(label)) for p, label in zip(parents, labels)],
        np.concatenate([stays_blank[stay], np.full(len(grow), -np.inf)]),
        np.concatenate([stays_label[stay], grows[parents, labels]]),
    )
