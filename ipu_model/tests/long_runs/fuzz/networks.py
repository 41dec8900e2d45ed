"""Small networks of many kinds, each in two blocks, and the inputs they take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import register_dataclass, tree_leaves

import poptorch


@dataclass(frozen=True)
class Kind:
    """A kind of network: its parts by name, what its two halves compute, and so many rows of inputs of one type.

    `constants` are positions of results that depend on nothing: a call returns them once, whatever the output mode.
    """

    parts: Callable[[], Mapping[str, Any]]
    front: Callable[[Any, Any], Any]
    back: Callable[[Any, Any, Any], Any]
    inputs: Callable[[int, torch.dtype], Any]
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    constants: frozenset[int] = frozenset()


class Network(nn.Module):
    """Runs the two halves of its kind in blocks; with a loss it returns `(output, loss)`.

    `ipus` are those of the two blocks, `None` leaves the blocks out. It finds its kind by name, and can be pickled.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.with_loss = name, False
        self.ipus: tuple[int, int] | None = None
        for part, value in self.kind.parts().items():
            setattr(self, part, value)
        for buffer, value in self.kind.buffers.items():
            self.register_buffer(buffer, value.clone())

    @property
    def kind(self) -> Kind:
        return KINDS[self.name]

    def forward(self, x: Any, nothing: None = None) -> Any:
        with self._block("front", 0):
            hidden = self.kind.front(self, x)
        with self._block("back", 1):
            output = self.kind.back(self, hidden, x)
            return (output, poptorch.identity_loss(_penalty(output), "mean")) if self.with_loss else output

    def _block(self, name: str, position: int) -> AbstractContextManager[None]:
        return nullcontext() if self.ipus is None else poptorch.Block(name, ipu_id=self.ipus[position])


def _penalty(output: Any) -> Tensor:
    """Return a value for each element of the first floating-point output, if there is one: something to minimise."""
    leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
    real = [leaf for leaf in leaves if leaf.is_floating_point()]
    return (real or [leaves[0].to(torch.float32)])[0].square() / 2


@dataclass
class Pair:
    left: Tensor
    right: Tensor


register_dataclass(Pair)


def _floats(*shape: int) -> Callable[[int, torch.dtype], Any]:
    return lambda rows, dtype: torch.randn(rows, *shape).to(dtype)


def _words(rows: int, dtype: torch.dtype) -> Any:
    return torch.randint(0, 7, (rows, 3)).to(dtype if not dtype.is_floating_point else torch.int64)


def _masked(rows: int, dtype: torch.dtype) -> Any:
    return {"mask": torch.rand(rows, 4) > 0.5, "none": None, "values": torch.randn(rows, 4).to(dtype)}


def _written_in_place(m: Any, x: Tensor) -> Any:
    m.calls.add_(1)
    hidden = m.a(x).clone()
    hidden[:, 0] = 0
    hidden += 1
    return hidden.clamp_(min=-1)


def _with_attributes(m: Any, x: Tensor) -> Any:
    """Plain tensors as attributes: one is read, one is written by the device and starts anew in each call."""
    m.cache = x.mean(0)
    return m.a(x) + m.offsets


def _edges() -> Tensor:
    """A constant sparse matrix, as graph networks keep their edges."""
    ends = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]])
    return torch.sparse_coo_tensor(ends, torch.tensor([0.5, 2.0, -1.0, 1.5]), (3, 3)).coalesce()


def _selected(m: Any, hidden: Tensor, x: Tensor) -> Any:
    top, index = hidden.topk(2, -1)
    kept = torch.zeros_like(hidden).scatter(-1, index, top)
    return kept.cumsum(-1), top.sort(-1)[0], index, hidden.gather(-1, index), torch.stack((top, top * 2), 1)


def _ends(m: Any, hidden: Tensor, x: Tensor) -> Any:
    outputs, last = m.rnn(hidden.transpose(0, 1))
    return *m.gru(hidden)[0][:, -1:].unbind(1), outputs.transpose(0, 1), last.transpose(0, 1)


KINDS: dict[str, Kind] = {
    "perceptron": Kind(
        parts=lambda: {"a": nn.Linear(3, 5), "b": nn.Linear(5, 4)},
        front=lambda m, x: torch.tanh(m.a(x)),
        back=lambda m, hidden, x: m.b(hidden),
        inputs=_floats(3),
    ),
    "convolutions": Kind(
        parts=lambda: {"a": nn.Conv2d(1, 3, 3, padding=1), "norm": nn.BatchNorm2d(3), "b": nn.Linear(27, 2)},
        front=lambda m, x: F.max_pool2d(F.relu(m.norm(m.a(x)), inplace=True), 2),
        back=lambda m, hidden, x: m.b(hidden.flatten(1)),
        inputs=_floats(1, 6, 6),
    ),
    "upsampling": Kind(
        parts=lambda: {"a": nn.Conv2d(1, 2, 2, 2), "b": nn.ConvTranspose2d(2, 1, 2, 2), "norm": nn.GroupNorm(1, 2)},
        front=lambda m, x: m.norm(m.a(x)),
        back=lambda m, hidden, x: {"image": m.b(hidden), "larger": F.interpolate(hidden, scale_factor=2.0)},
        inputs=_floats(1, 4, 4),
    ),
    "recurrent": Kind(
        parts=lambda: {
            "lstm": nn.LSTM(3, 4, batch_first=True, bidirectional=True, proj_size=2),
            "gru": nn.GRU(4, 2, batch_first=True),
            "rnn": nn.RNN(4, 2, 2, nonlinearity="relu"),
        },
        front=lambda m, x: m.lstm(x)[0],
        back=_ends,
        inputs=_floats(5, 3),
    ),
    "attention": Kind(
        parts=lambda: {"a": nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), "b": nn.LayerNorm(4)},
        front=lambda m, x: m.a(x),
        back=lambda m, hidden, x: m.b(hidden).mean(1),
        inputs=_floats(3, 4),
    ),
    "tied words": Kind(
        parts=lambda: {"words": nn.Embedding(7, 4)},
        front=lambda m, x: m.words(x),
        back=lambda m, hidden, x: [F.log_softmax(hidden.sum(1) @ m.words.weight.T, -1), x],
        inputs=_words,
    ),
    "integers": Kind(
        parts=lambda: {"scale": nn.Parameter(torch.tensor([0.5, -1.0]))},
        front=lambda m, x: (x * 2, x % 2 == 0, x.sum(-1), x.argmax(-1)),
        back=lambda m, hidden, x: (hidden[2].unsqueeze(-1) * m.scale, hidden[0], hidden[1], hidden[3]),
        inputs=lambda rows, dtype: torch.randint(0, 50, (rows, 4)).to(dtype),
    ),
    "masks": Kind(
        parts=lambda: {"fill": nn.Parameter(torch.tensor(0.25))},
        front=lambda m, x: torch.where(x["mask"], x["values"], m.fill.to(x["values"].dtype)),
        back=lambda m, hidden, x: {**x, "out": hidden.masked_fill(~x["mask"], 0.5).softmax(-1), "mask": ~x["mask"]},
        inputs=_masked,
    ),
    "in place": Kind(
        parts=lambda: {"a": nn.Linear(3, 4)},
        buffers={"calls": torch.zeros(())},
        front=_written_in_place,
        back=lambda m, hidden, x: (hidden.mul_(2).t().contiguous().t(), m.calls * 1, x[..., :1]),
        inputs=_floats(3),
    ),
    "dropout": Kind(
        parts=lambda: {"a": nn.Linear(3, 4)},
        front=lambda m, x: F.dropout(m.a(x), 0.5, training=True),
        back=lambda m, hidden, x: (hidden, torch.randn_like(hidden), torch.rand(2, 3)),
        inputs=_floats(3),
    ),
    "constants": Kind(
        parts=lambda: {"a": nn.Linear(3, 1)},
        buffers={"table": torch.arange(3)},
        front=lambda m, x: m.a(x + m.table),
        back=lambda m, hidden, x: (hidden.mean(), torch.ones(2), torch.arange(3), hidden.shape[1], None, "text", 1.5),
        inputs=_floats(3),
        constants=frozenset({1, 2}),
    ),
    "extremes": Kind(
        parts=lambda: {"scale": nn.Parameter(torch.tensor(30.0))},
        front=lambda m, x: (F.log_softmax(x * m.scale, -1).exp(), x / (x.norm(dim=-1, keepdim=True) + 1e-3)),
        back=lambda m, hidden, x: (*hidden, torch.sigmoid(-100 * x), F.softplus(50 * x), x.logsumexp(-1)),
        inputs=_floats(3),
    ),
    "selecting": Kind(lambda: {"a": nn.Linear(3, 6)}, lambda m, x: m.a(x), _selected, _floats(3)),
    "attributes": Kind(
        parts=lambda: {"a": nn.Linear(3, 3), "offsets": torch.tensor([0.5, 1.0, -2.0]), "cache": torch.zeros(3)},
        front=_with_attributes,
        back=lambda m, hidden, x: hidden * m.cache,
        inputs=_floats(3),
    ),
    "neighbours": Kind(
        parts=lambda: {"edges": _edges(), "a": nn.Linear(4, 2)},
        front=lambda m, x: m.a(x),
        back=lambda m, hidden, x: (torch.sparse.mm(m.edges, hidden.mean(0)), m.edges.to_dense() @ hidden),
        inputs=_floats(3, 4),
    ),
    "structured": Kind(
        parts=lambda: {"a": nn.Linear(3, 3)},
        front=lambda m, x: m.a(x.left),
        back=lambda m, hidden, x: {"pair": Pair(hidden, x.right), "both": (hidden + x.right, [x.left])},
        inputs=lambda rows, dtype: Pair(torch.randn(rows, 3).to(dtype), torch.randn(rows, 3).to(dtype)),
    ),
}
