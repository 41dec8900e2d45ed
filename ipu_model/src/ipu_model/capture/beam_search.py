"""Decoding of connectionist temporal classification by prefix beam search, as one op of the graph.

Graves, Supervised Sequence Labelling with Recurrent Neural Networks (2012), section 7.5: paths that give the same
labels, once repeats and blanks are left out, are added up; the best prefixes go on to the next time step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# What stands behind the last label of a path.
PADDING = -1

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Decoded = tuple[Tensor, Tensor, Tensor]


def beam_search(
    log_probabilities: Tensor, lengths: Tensor, blank: int, beam_width: int, top_paths: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best label sequences of each sample: negative log probabilities, lengths, and labels.

    `log_probabilities` are `[T, N, C]`, `lengths` `[N]`, at most T. The results are `[N, top_paths]`,
    `[N, top_paths]` (int32) and `[N, top_paths, T]` (int32), the likeliest first; -1 fills what is behind a path. If
    there are fewer paths, the others are empty and their probability is zero.
    """
    source = log_probabilities.detach()
    found: Decoded = torch.ops.ipu_model.ctc_beam_search(source, lengths, blank, beam_width, top_paths)
    return found


@torch.library.custom_op("ipu_model::ctc_beam_search", mutates_args=())
def _search(log_probabilities: Tensor, lengths: Tensor, blank: int, beam_width: int, top_paths: int) -> Decoded:
    steps, samples, _ = log_probabilities.shape
    values = log_probabilities.double().numpy()
    scores = np.full((samples, top_paths), np.inf)
    sizes = np.zeros((samples, top_paths), np.int32)
    labels = np.full((samples, top_paths, steps), PADDING, np.int32)
    for sample, length in enumerate(lengths.tolist()):
        best = _decoded(values[: max(0, int(length)), sample], blank, beam_width)[:top_paths]
        for rank, (score, path) in enumerate(best):
            scores[sample, rank], sizes[sample, rank] = -score, len(path)
            labels[sample, rank, : len(path)] = path
    score_tensor = torch.from_numpy(scores).to(log_probabilities.dtype)
    return score_tensor, torch.from_numpy(sizes), torch.from_numpy(labels)


@_search.register_fake
def _(log_probabilities: Tensor, lengths: Tensor, blank: int, beam_width: int, top_paths: int) -> Decoded:
    steps, samples, _ = log_probabilities.shape
    return (
        log_probabilities.new_empty(samples, top_paths),
        log_probabilities.new_empty(samples, top_paths, dtype=torch.int32),
        log_probabilities.new_empty(samples, top_paths, steps, dtype=torch.int32),
    )


class _Beam(NamedTuple):
    """The prefixes under way: nodes of the tree, and log probabilities of paths that end in a blank, and that do not.

    Node 0 is the empty prefix.
    """

    nodes: Ints
    blank: Floats
    label: Floats

    @property
    def total(self) -> Floats:
        """Log probabilities of the prefixes."""
        return np.logaddexp(self.blank, self.label)


class _Tree:
    """All prefixes met so far: each is its parent with one label more, so that equal ones are one node."""

    def __init__(self) -> None:
        self.parents, self.labels = [-1], [-1]
        self._known: dict[tuple[int, int], int] = {}

    def child(self, parent: int, label: int) -> int:
        """Return the node of `parent` with `label` behind it."""
        if (parent, label) not in self._known:
            self._known[parent, label] = len(self.parents)
            self.parents.append(parent)
            self.labels.append(label)
        return self._known[parent, label]

    def path(self, node: int) -> list[int]:
        """Return the labels of a prefix."""
        found: list[int] = []
        while node > 0:
            found.append(self.labels[node])
            node = self.parents[node]
        return found[::-1]


def _decoded(values: Floats, blank: int, width: int) -> list[tuple[float, list[int]]]:
    """Return log probability and labels of the best sequences of one sample `[T, C]`, best first."""
    tree = _Tree()
    beam = _Beam(np.zeros(1, np.int64), np.zeros(1), np.full(1, -np.inf))
    for row in values:
        beam = _advanced(beam, tree, row, blank, width)
    total = beam.total
    order = [index for index in np.argsort(-total, kind="stable") if total[index] > -np.inf]
    return [(float(total[index]), tree.path(int(beam.nodes[index]))) for index in order]


def _advanced(beam: _Beam, tree: _Tree, row: Floats, blank: int, width: int) -> _Beam:
    """Return the best `width` prefixes after one more time step with log probabilities `row` `[C]`."""
    last = np.array([tree.labels[node] for node in beam.nodes], np.int64)
    total, named = beam.total, last >= 0
    stays_blank = total + row[blank]
    stays_label = np.where(named, beam.label + row[last], -np.inf)
    grows = total[:, None] + row[None, :]
    # A label directly behind itself is a repeat unless a blank came between.
    grows[named, last[named]] = beam.blank[named] + row[last[named]]
    grows[:, blank] = -np.inf
    places = {int(node): place for place, node in enumerate(beam.nodes)}
    for place, node in enumerate(beam.nodes):
        parent = places.get(tree.parents[node])
        if parent is not None:
            stays_label[place] = np.logaddexp(stays_label[place], grows[parent, last[place]])
            grows[parent, last[place]] = -np.inf
    candidates = np.concatenate([np.logaddexp(stays_blank, stays_label), grows.ravel()])
    best = np.argsort(-candidates, kind="stable")[:width]
    return _kept(beam, tree, best[candidates[best] > -np.inf], stays_blank, stays_label, grows)


def _kept(beam: _Beam, tree: _Tree, best: Ints, stays_blank: Floats, stays_label: Floats, grows: Floats) -> _Beam:
    """Return the prefixes chosen by `best`: numbers of those that stay, then of those that grow by a label."""
    stay, grow = best[best < len(beam.nodes)], best[best >= len(beam.nodes)] - len(beam.nodes)
    parents, labels = np.divmod(grow, grows.shape[1])
    children = [tree.child(int(beam.nodes[p]), int(label)) for p, label in zip(parents, labels)]
    return _Beam(
        np.concatenate([beam.nodes[stay], np.array(children, np.int64)]),
        np.concatenate([stays_blank[stay], np.full(len(grow), -np.inf)]),
        np.concatenate([stays_label[stay], grows[parents, labels]]),
    )
