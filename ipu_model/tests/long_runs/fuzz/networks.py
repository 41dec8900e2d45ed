"""Small networks of many kinds, each in two blocks, and the inputs they take."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import poptorch

Inputs = Any


class Network(nn.Module):
    """`forward(x)` runs `front` and `back` in blocks; with a loss it returns `(output, loss)`.

    `ipus` are those of the two blocks, `None` leaves the blocks out.
    """

    draws_random_numbers = False
    # Positions of results that depend on nothing: a call returns them once, whatever the output mode.
    constants: frozenset[int] = frozenset()

    def __init__(self) -> None:
        super().__init__()
        self.with_loss = False
        self.ipus: tuple[int, int] | None = None

    def front(self, x: Any) -> Any:
        """Compute the first half."""
        return x

    def back(self, hidden: Any, x: Any) -> Any:
        """Compute the second half from the first one's result and the input."""
        return hidden

    def forward(self, x: Any, nothing: None = None) -> Any:
        """Return the output, with a loss if asked for one."""
        with self._block("front", 0):
            hidden = self.front(x)
        with self._block("back", 1):
            output = self.back(hidden, x)
            if not self.with_loss:
                return output
            return output, poptorch.identity_loss(_penalty(output), "mean")

    def _block(self, name: str, position: int) -> AbstractContextManager[None]:
        return nullcontext() if self.ipus is None else poptorch.Block(name, ipu_id=self.ipus[position])


def _penalty(output: Any) -> Tensor:
    """Return a value for each element of the first floating-point output, if there is one: something to minimise."""
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
    real = [leaf for leaf in leaves if leaf.is_floating_point()]
    return (real or [leaves[0].to(torch.float32)])[0].square() / 2


class Perceptron(Network):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 5), nn.Linear(5, 4)

    def front(self, x: Tensor) -> Any:
        return torch.tanh(self.a(x))

    def back(self, hidden: Tensor, x: Tensor) -> Any:
        return self.b(hidden)


class Convolutions(Network):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Linear(27, 2)

    def front(self, x: Tensor) -> Any:
        return F.max_pool2d(F.relu(self.norm(self.a(x)), inplace=True), 2)

    def back(self, hidden: Tensor, x: Tensor) -> Any:
        return self.b(hidden.flatten(1))


class Upsampling(Network):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 2, 2, stride=2), nn.ConvTranspose2d(2, 1, 2, stride=2)
        self.norm = nn.GroupNorm(1, 2)

    def front(self, x: Tensor) -> Any:
        return self.norm(self.a(x))

    def back(self, hidden: Tensor, x: Tensor) -> Any:
        return {"image": self.b(hidden), "larger": F.interpolate(hidden, scale_factor=2, mode="bilinear")}


class Recurrent(Network):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTM(3, 4, batch_first=True), nn.GRU(4, 2, batch_first=True)

    def front(self, x: Tensor) -> Any:
        return self.lstm(x)[0]

    def back(self, hidden: Tensor, x: Tensor) -> Any:
        return tuple(self.gru(hidden)[0][:, -1:].unbind(1))


class Attention(Network):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.norm = nn.LayerNorm(4)

    def front(self, x: Tensor) -> Any:
        return self.layer(x)

    def back(self, hidden: Tensor, x: Tensor) -> Any:
        return self.norm(hidden).mean(1)


class TiedWords(Network):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4)

    def front(self, x: Tensor) -> Any:
        return self.words(x)

    def back(self, hidden: Tensor, x: Tensor) -> Any:
        return [F.log_softmax(hidden.sum(1) @ self.words.weight.T, -1), x]


class Integers(Network):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([0.5, -1.0]))

    def front(self, x: Tensor) -> Any:
        return {"double": x * 2, "even": x % 2 == 0, "total": x.sum(-1), "largest": x.argmax(-1)}

    def back(self, hidden: Any, x: Tensor) -> Any:
        return (hidden["total"].unsqueeze(-1) * self.scale, hidden["double"], hidden["even"], hidden["largest"])


class Masks(Network):
    def __init__(self) -> None:
        super().__init__()
        self.fill = nn.Parameter(torch.tensor(0.25))

    def front(self, x: dict[str, Any]) -> Any:
        return torch.where(x["mask"], x["values"], self.fill.to(x["values"].dtype))

    def back(self, hidden: Tensor, x: dict[str, Any]) -> Any:
        return {"out": hidden.masked_fill(~x["mask"], 0.5).softmax(-1), "mask": ~x["mask"], "none": x["none"]}


class InPlace(Network):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 4)
        self.register_buffer("calls", torch.zeros(()))

    def front(self, x: Tensor) -> Any:
        self.get_buffer("calls").add_(1)
        hidden = self.a(x).clone()
        hidden[:, 0] = 0
        hidden += 1
        return hidden.clamp_(min=-1)

    def back(self, hidden: Tensor, x: Tensor) -> Any:
        return hidden.mul_(2).t().contiguous().t(), self.get_buffer("calls") * 1, x[..., :1]


class Dropout(Network):
    draws_random_numbers = True

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 4)

    def front(self, x: Tensor) -> Any:
        return F.dropout(self.a(x), 0.5, training=True)

    def back(self, hidden: Tensor, x: Tensor) -> Any:
        return hidden, torch.randn_like(hidden), torch.rand(2, 3)


class Constants(Network):
    constants = frozenset({1, 2})

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 1)
        self.register_buffer("table", torch.arange(3))

    def front(self, x: Tensor) -> Any:
        return self.a(x + self.get_buffer("table"))

    def back(self, hidden: Tensor, x: Tensor) -> Any:
        return hidden.mean(), torch.ones(2), torch.arange(3), hidden.shape[1], None, "text", 1.5


class Extremes(Network):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(30.0))

    def front(self, x: Tensor) -> Any:
        return F.log_softmax(x * self.scale, -1)

    def back(self, hidden: Tensor, x: Tensor) -> Any:
        norm = x.norm(dim=-1, keepdim=True)
        return hidden.exp(), x / (norm + 1e-3), torch.sigmoid(-100 * x), F.softplus(50 * x), x.logsumexp(-1)


class Selecting(Network):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 6)

    def front(self, x: Tensor) -> Any:
        return self.a(x)

    def back(self, hidden: Tensor, x: Tensor) -> Any:
        top, index = hidden.topk(2, -1)
        kept = torch.zeros_like(hidden).scatter(-1, index, top)
        return kept.cumsum(-1), top.sort(-1)[0], index, hidden.gather(-1, index), torch.stack((top, top * 2), 1)


class Gated(Network):
    def __init__(self) -> None:
        super().__init__()
        self.projected = nn.LSTM(3, 4, batch_first=True, bidirectional=True, proj_size=2)
        self.plain = nn.RNN(4, 2, 2, nonlinearity="relu")

    def front(self, x: Tensor) -> Any:
        return self.projected(x)[0]

    def back(self, hidden: Tensor, x: Tensor) -> Any:
        found, last = self.plain(hidden.transpose(0, 1))
        return found.transpose(0, 1), last.transpose(0, 1)


class Attributes(Network):
    """Plain tensors as attributes: one is read, one is written by the device and starts anew in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.offsets, self.cache = torch.tensor([0.5, 1.0, -2.0]), torch.zeros(3)

    def front(self, x: Tensor) -> Any:
        self.cache = x.mean(0)
        return self.a(x) + self.offsets

    def back(self, hidden: Tensor, x: Tensor) -> Any:
        return hidden * self.cache


class Neighbours(Network):
    """A constant sparse matrix, as graph networks keep their edges."""

    def __init__(self) -> None:
        super().__init__()
        edges = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]])
        self.edges = torch.sparse_coo_tensor(edges, torch.tensor([0.5, 2.0, -1.0, 1.5]), (3, 3)).coalesce()
        self.a = nn.Linear(4, 2)

    def front(self, x: Tensor) -> Any:
        return self.a(x)

    def back(self, hidden: Tensor, x: Tensor) -> Any:
        return torch.sparse.mm(self.edges, hidden.mean(0)), self.edges.to_dense() @ hidden


@dataclass
class Pair:
    """Two tensors, as programs hand them over and get them back."""

    left: Tensor
    right: Tensor


torch.utils._pytree.register_dataclass(Pair)


class Structured(Network):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)

    def front(self, x: Pair) -> Any:
        return self.a(x.left)

    def back(self, hidden: Tensor, x: Pair) -> Any:
        return {"pair": Pair(hidden, x.right), "both": (hidden + x.right, [x.left])}


@dataclass(frozen=True)
class Kind:
    """How to make a network and `rows` rows of inputs of one element type."""

    make: Callable[[], Network]
    inputs: Callable[[int, torch.dtype], Inputs]


def _floats(*shape: int) -> Callable[[int, torch.dtype], Inputs]:
    return lambda rows, dtype: torch.randn(rows, *shape).to(dtype)


def _words(rows: int, dtype: torch.dtype) -> Inputs:
    return torch.randint(0, 7, (rows, 3)).to(dtype if not dtype.is_floating_point else torch.int64)


def _counts(rows: int, dtype: torch.dtype) -> Inputs:
    return torch.randint(0, 50, (rows, 4)).to(dtype)


def _masked(rows: int, dtype: torch.dtype) -> Inputs:
    return {"mask": torch.rand(rows, 4) > 0.5, "none": None, "values": torch.randn(rows, 4).to(dtype)}


def _pairs(rows: int, dtype: torch.dtype) -> Inputs:
    return Pair(torch.randn(rows, 3).to(dtype), torch.randn(rows, 3).to(dtype))


KINDS: dict[str, Kind] = {
    "perceptron": Kind(Perceptron, _floats(3)),
    "convolutions": Kind(Convolutions, _floats(1, 6, 6)),
    "upsampling": Kind(Upsampling, _floats(1, 4, 4)),
    "recurrent": Kind(Recurrent, _floats(5, 3)),
    "attention": Kind(Attention, _floats(3, 4)),
    "tied words": Kind(TiedWords, _words),
    "integers": Kind(Integers, _counts),
    "masks": Kind(Masks, _masked),
    "in place": Kind(InPlace, _floats(3)),
    "dropout": Kind(Dropout, _floats(3)),
    "constants": Kind(Constants, _floats(3)),
    "extremes": Kind(Extremes, _floats(3)),
    "selecting": Kind(Selecting, _floats(3)),
    "gated": Kind(Gated, _floats(5, 3)),
    "attributes": Kind(Attributes, _floats(3)),
    "neighbours": Kind(Neighbours, _floats(3, 4)),
    "structured": Kind(Structured, _pairs),
}
