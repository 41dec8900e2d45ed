"""Layers of LSTMs, GRUs and plain RNNs: as on the device, each layer is one op of the graph.

The device runs a layer as a loop over time steps whose code exists once. The ops are `ipu_model::lstm`, `gru`,
`rnn_tanh` and `rnn_relu`, and the same names with `_backward`, each for one layer in one direction. Symbols: T steps, N
sequences, I inputs, H states, P outputs of a step (P = H unless an LSTM projects its states) and G gates (4, 3 or 1 for
each state). The gates' order is PyTorch's: input, forget, cell and output of an LSTM; reset, update and new of a GRU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

# Applied to every value that the device stores: no change in float32, rounding in float16.
Stored: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Loop:
    """What the loop reads beside inputs: first states, weights `[G, P]`, a bias if it stays inside, a projection.

    On its way back it also gets gradients; `wanted`: that of the first hidden states is asked for.
    """

    hidden: Tensor
    cell: Tensor | None
    weights: Tensor
    bias: Tensor | None
    projection: Tensor | None
    order: range
    stored: Stored
    d_hiddens: Tensor | None = None
    d_last_cell: Tensor | None = None
    wanted: bool = False

    def past(self, first: Tensor, states: Tensor) -> Tensor:
        """Return the states before each step: `first`, then all but the last in the loop's order."""
        first = first.unsqueeze(0)
        return torch.cat([first, states[:-1]] if self.order.step > 0 else [states[1:], first])

    def arriving(self, step: int, d_hidden: Tensor) -> Tensor:
        return d_hidden if self.d_hiddens is None else d_hidden + self.d_hiddens[step]


class LoopGradients(NamedTuple):
    """Gradients of the gates' shares from the inputs and from the hidden states `[T, N, G]`, and of the first states.

    The two shares have the same gradient in every kind but a GRU.
    """

    from_inputs: Tensor
    from_hiddens: Tensor
    hidden: Tensor
    cell: Tensor | None = None
    projection: Tensor | None = None


# Hidden states [T, N, P], last cells, and values for the backward pass [T, N, ...].
Results: TypeAlias = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Kind:
    """A kind of recurrent layer: its numbers of gates and of saved values per state, and its two loops.

    `backward(loop, hiddens, saved)` takes what `forward(loop, inputs)` returned, where `inputs` `[T, N, G]`
    are the inputs' share of the gates. `bias_in_loop`: the second bias cannot be added to that before the loop.
    """

    name: str
    gates: int
    kept: int
    forward: Callable[[Loop, Tensor], Results]
    backward: Callable[[Loop, Tensor, Tensor], LoopGradients]
    bias_in_loop: bool = False


def _lstm_forward(loop: Loop, inputs: Tensor) -> Results:
    steps, rows, gates = inputs.shape
    states = gates // 4
    hidden, cell, stored = loop.hidden, loop.cell, loop.stored
    assert cell is not None
    hiddens = inputs.new_empty(steps, rows, hidden.shape[1])
    saved = inputs.new_empty(steps, rows, 5 * states)
    transposed = loop.weights.t()
    for step in loop.order:
        before = stored(torch.addmm(inputs[step], hidden, transposed))
        kept = saved[step]
        torch.sigmoid(before, out=kept[:, :gates])
        torch.tanh(before[:, 2 * states : 3 * states], out=kept[:, 2 * states : 3 * states])
        kept[:, :gates] = stored(kept[:, :gates].contiguous())
        i, f, g, o, _ = kept.chunk(5, 1)
        cell = kept[:, gates:] = stored(f * cell + i * g)
        hidden = stored(o * stored(cell.tanh()))
        if loop.projection is not None:
            hidden = stored(hidden @ loop.projection.t())
        hiddens[step] = hidden
    return hiddens, cell.clone(), saved


def _lstm_backward(loop: Loop, hiddens: Tensor, saved: Tensor) -> LoopGradients:
    stored, projection = loop.stored, loop.projection
    assert loop.cell is not None
    i, f, g, o, cells = saved.chunk(5, 2)
    squashed = stored(cells.tanh())
    past_cells = loop.past(loop.cell, cells)
    unit = 1 - squashed**2
    gates = torch.cat([i, f, g, o], 2)
    slopes = gates * (1 - gates)
    slopes[..., 2 * i.shape[2] : 3 * i.shape[2]] = 1 - g**2
    d_gates = torch.empty_like(gates)
    d_projected = None if projection is None else torch.empty_like(hiddens)
    d_hidden, d_cell = torch.zeros_like(loop.hidden), torch.zeros_like(loop.cell)
    if loop.d_last_cell is not None:
        d_cell = d_cell + loop.d_last_cell
    for step in reversed(loop.order):
        d_hidden = stored(loop.arriving(step, d_hidden))
        if projection is not None and d_projected is not None:
            d_projected[step] = d_hidden
            d_hidden = stored(d_hidden @ projection)
        d_cell = stored(d_cell + stored(d_hidden * o[step]) * unit[step])
        parts = [d_cell * g[step], d_cell * past_cells[step], d_cell * i[step], d_hidden * squashed[step]]
        d_gates[step] = stored(stored(torch.cat(parts, 1)) * slopes[step])
        d_cell = d_cell * f[step]
        if step != loop.order[0] or loop.wanted:
            d_hidden = d_gates[step] @ loop.weights
    if d_projected is None:
        return LoopGradients(d_gates, d_gates, d_hidden, d_cell)
    d_projection = d_projected.flatten(0, 1).t() @ stored(o * squashed).flatten(0, 1)
    return LoopGradients(d_gates, d_gates, d_hidden, d_cell, d_projection)


def _gru_forward(loop: Loop, inputs: Tensor) -> Results:
    steps, rows, gates = inputs.shape
    states, hidden, stored = gates // 3, loop.hidden, loop.stored
    hiddens = inputs.new_empty(steps, rows, states)
    saved = inputs.new_empty(steps, rows, 4 * states)
    transposed = loop.weights.t()
    for step in loop.order:
        share = hidden @ transposed if loop.bias is None else torch.addmm(loop.bias, hidden, transposed)
        share = stored(share)
        own, before = inputs[step], share[:, 2 * states :]
        opened = stored(stored(own[:, : 2 * states] + share[:, : 2 * states]).sigmoid_())
        reset, update = opened.chunk(2, 1)
        new = stored(stored(torch.addcmul(own[:, 2 * states :], reset, before)).tanh_())
        torch.cat([opened, new, before], 1, out=saved[step])
        hidden = hiddens[step] = stored(torch.addcmul(new, update, hidden - new))
    return hiddens, inputs.new_empty(0), saved


def _gru_backward(loop: Loop, hiddens: Tensor, saved: Tensor) -> LoopGradients:
    stored = loop.stored
    reset, update, new, before = saved.chunk(4, 2)
    # Everything that does not depend on the incoming gradient is computed for all steps at once.
    into_new = (1 - update) * (1 - new**2)
    into_update = (loop.past(loop.hidden, hiddens) - new) * update * (1 - update)
    into_reset = before * reset * (1 - reset)
    from_inputs, from_hiddens = (saved.new_empty(*new.shape[:2], 3 * new.shape[2]) for _ in range(2))
    d_hidden = torch.zeros_like(loop.hidden)
    for step in reversed(loop.order):
        d_hidden = stored(loop.arriving(step, d_hidden))
        d_new, d_update = stored(d_hidden * into_new[step]), stored(d_hidden * into_update[step])
        d_reset = stored(d_new * into_reset[step])
        torch.cat([d_reset, d_update, d_new], 1, out=from_inputs[step])
        torch.cat([d_reset, d_update, stored(d_new * reset[step])], 1, out=from_hiddens[step])
        if step != loop.order[0] or loop.wanted:
            d_hidden = torch.addmm(d_hidden * update[step], from_hiddens[step], loop.weights)
    return LoopGradients(from_inputs, from_hiddens, d_hidden)


def _plain(name: str, act: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]) -> Kind:
    def forward(loop: Loop, inputs: Tensor) -> Results:
        hiddens, hidden, transposed = torch.empty_like(inputs), loop.hidden, loop.weights.t()
        for step in loop.order:
            hidden = loop.stored(act(loop.stored(torch.addmm(inputs[step], hidden, transposed))))
            hiddens[step] = hidden
        return hiddens, inputs.new_empty(0), inputs.new_empty(0)

    def backward(loop: Loop, hiddens: Tensor, saved: Tensor) -> LoopGradients:
        slopes, d_gates = slope(hiddens), torch.empty_like(hiddens)
        d_hidden = torch.zeros_like(loop.hidden)
        for step in reversed(loop.order):
            d_gates[step] = loop.stored(loop.stored(loop.arriving(step, d_hidden)) * slopes[step])
            if step != loop.order[0] or loop.wanted:
                d_hidden = d_gates[step] @ loop.weights
        return LoopGradients(d_gates, d_gates, d_hidden)

    return Kind(name, 1, 0, forward, backward)


KINDS = {
    kind.name: kind
    for kind in (
        Kind("lstm", 4, 5, _lstm_forward, _lstm_backward),
        Kind("gru", 3, 4, _gru_forward, _gru_backward, bias_in_loop=True),
        _plain("rnn_tanh", torch.tanh, lambda h: 1 - h**2),
        _plain("rnn_relu", torch.relu, lambda h: (h > 0).to(h.dtype)),
    )
}


_FORWARD = (
    "(Tensor x, Tensor hidden, Tensor? cell, Tensor w_x, Tensor w_h, Tensor? b_x, Tensor? b_h, Tensor? w_p, "
    "bool reverse) -> (Tensor, Tensor, Tensor)"
)
_BACKWARD = (
    "(Tensor? d_hiddens, Tensor? d_last_cell, Tensor x, Tensor hidden, Tensor? cell, Tensor w_x, Tensor w_h, "
    "Tensor? w_p, Tensor hiddens, Tensor last_cell, Tensor saved, bool reverse, bool[] wanted) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def forward(kind: Kind, *arguments: Any, stored: Stored = lambda x: x) -> Results:
    """Return hidden states `[T, N, P]`, last cells `[N, H]`, values for backward; `_FORWARD` names the arguments."""
    x, hidden, cell, w_x, w_h, b_x, b_h, w_p, reverse = arguments
    inputs = F.linear(x, w_x, b_x)
    if b_h is not None and not kind.bias_in_loop:
        inputs = inputs.add_(b_h)
    order = range(len(x))[:: -1 if reverse else 1]
    loop = Loop(hidden, cell, w_h, b_h if kind.bias_in_loop else None, w_p, order, stored)
    return kind.forward(loop, stored(inputs))


def backward(kind: Kind, *arguments: Any, stored: Stored = lambda x: x) -> tuple[Tensor, ...]:
    """Return the gradients of x, hidden, cell, w_x, w_h, biases and w_p for `_BACKWARD`; empty if it has none."""
    d_hiddens, d_last_cell, x, hidden, cell, w_x, w_h, w_p, hiddens, _, saved, reverse, wanted = arguments
    order = range(len(x))[:: -1 if reverse else 1]
    loop = Loop(hidden, cell, w_h, None, w_p, order, stored, d_hiddens, d_last_cell, wanted[1])
    gradients = kind.backward(loop, hiddens, saved)
    own, theirs = gradients.from_inputs.flatten(0, 1), gradients.from_hiddens.flatten(0, 1)
    return (
        gradients.from_inputs @ w_x if wanted[0] else x.new_empty(0),
        gradients.hidden if wanted[1] else x.new_empty(0),
        gradients.cell if wanted[2] and gradients.cell is not None else x.new_empty(0),
        own.t() @ x.flatten(0, 1),
        theirs.t() @ loop.past(hidden, hiddens).flatten(0, 1),
        own.sum(0),
        theirs.sum(0) if kind.bias_in_loop else x.new_empty(0),
        x.new_empty(0) if gradients.projection is None else gradients.projection,
    )


class LayerOps(NamedTuple):
    forward: Any
    backward: Any


def _register(kind: Kind) -> LayerOps:
    name = f"ipu_model::{kind.name}"
    op = torch.library.custom_op(name, partial(forward, kind), mutates_args=(), schema=_FORWARD)
    gradient = torch.library.custom_op(f"{name}_backward", partial(backward, kind), mutates_args=(), schema=_BACKWARD)
    op.register_fake(partial(_shapes, kind))
    gradient.register_fake(partial(_gradient_shapes, kind))
    overload = getattr(torch.ops.ipu_model, f"{kind.name}_backward").default
    op.register_autograd(partial(_gradients, overload), setup_context=_keep_arguments)
    return LayerOps(getattr(torch.ops.ipu_model, kind.name).default, overload)


def _shapes(kind: Kind, x: Tensor, hidden: Tensor, cell: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    steps, rows, _ = x.shape
    states = rest[0].shape[0] // kind.gates
    saved = (steps, rows, kind.kept * states) if kind.kept else (0,)
    last_cell = (0,) if cell is None else cell.shape
    return x.new_empty(steps, rows, hidden.shape[1]), x.new_empty(last_cell), x.new_empty(saved)


def _gradient_shapes(kind: Kind, *args: Any) -> tuple[Tensor, ...]:
    x, hidden, cell, w_x, w_h, w_p = args[2:8]
    asked = [x.new_empty(t.shape if want and t is not None else 0) for t, want in zip((x, hidden, cell), args[12])]
    second_bias = w_x.shape[:1] if kind.bias_in_loop else (0,)
    projection = (0,) if w_p is None else w_p.shape
    shapes = (w_x.shape, w_h.shape, w_x.shape[:1], second_bias, projection)
    return (*asked, *(w_x.new_empty(shape) for shape in shapes))


def _keep_arguments(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, hidden, cell, w_x, w_h, b_x, _, w_p, reverse = inputs
    ctx.save_for_backward(x, hidden, cell, w_x, w_h, w_p, *output)
    ctx.reverse, ctx.has_biases = reverse, b_x is not None
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)


def _gradients(
    op: Any, ctx: Any, d_hiddens: Tensor | None, d_last_cell: Tensor | None, _: Any
) -> tuple[Tensor | None, ...]:
    if d_hiddens is None and d_last_cell is None:
        return (None,) * 9
    wanted = list(ctx.needs_input_grad[:3])
    *states, d_w_x, d_w_h, d_b_x, d_b_h, d_w_p = op(d_hiddens, d_last_cell, *ctx.saved_tensors, ctx.reverse, wanted)
    asked = [gradient if want else None for gradient, want in zip(states, wanted)]
    biases = [d_b_x, d_b_h if len(d_b_h) else d_b_x] if ctx.has_biases else [None, None]
    return (*asked, d_w_x, d_w_h, *biases, d_w_p if ctx.saved_tensors[5] is not None else None, None)


# The ops of the graph by kind, forward and backward.
LAYER_OPS = {name: _register(kind) for name, kind in KINDS.items()}


def recurrent_network(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Compute as `original` (torch.lstm, ...) does, one op a layer and direction, if nothing is packed."""
    if kwargs or len(args) != 9 or not isinstance(args[2], (tuple, list)):
        return original(*args, **kwargs)
    op = LAYER_OPS[original.__name__].forward
    x, states, weights, has_biases, layers, dropout, training, bidirectional, batch_first = args
    has_cells, directions = isinstance(states, (tuple, list)), 2 if bidirectional else 1
    hiddens, cells = states if has_cells else (states, None)
    plain = 4 if has_biases else 2
    per_direction = len(weights) // (layers * directions)
    if x.dim() != 3 or len(weights) != per_direction * layers * directions or per_direction - plain not in (0, 1):
        return original(*args)
    x = x.transpose(0, 1) if batch_first else x
    last_hidden, last_cells = [], []
    for layer in range(layers):
        results = []
        for direction in range(directions):
            number = layer * directions + direction
            own = weights[number * per_direction : (number + 1) * per_direction]
            biases, projection = own[2:4] if has_biases else (None, None), own[plain] if own[plain:] else None
            cell = None if cells is None else cells[number]
            hidden, last_cell, _ = op(x, hiddens[number], cell, *own[:2], *biases, projection, bool(direction))
            results.append(hidden)
            last_hidden.append(hidden[0 if direction else -1])
            last_cells.append(last_cell)
        x = torch.cat(results, -1) if bidirectional else results[0]
        if dropout and training and layer < layers - 1:
            x = F.dropout(x, dropout)
    output = x.transpose(0, 1) if batch_first else x
    last = torch.stack(last_hidden)
    return (output, last, torch.stack(last_cells)) if has_cells else (output, last)
