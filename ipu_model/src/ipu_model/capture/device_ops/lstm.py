"""A layer of an LSTM as one op of the graph, as the device has it: a loop over time steps whose code exists once.

Its two ops are `ipu_model::lstm` and `ipu_model::lstm_backward`, for one layer in one direction. Symbols: T steps, N
sequences, I inputs and H states; the gates lie as in PyTorch: input, forget, cell, output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

# What is done to every value that the device stores: nothing in float32, a rounding in float16.
Stored: TypeAlias = Callable[[Tensor], Tensor]


def lstm(*args: Any, **kwargs: Any) -> Any:
    """Compute what `torch.lstm` does, layer by layer; packed sequences and projections are left to `torch.lstm`."""
    if kwargs or len(args) != 9 or not isinstance(args[1], (tuple, list)):
        return torch.lstm(*args, **kwargs)
    x, states, weights, has_biases, layers, dropout, training, bidirectional, batch_first = args
    per_direction = 4 if has_biases else 2
    directions = 2 if bidirectional else 1
    if len(weights) != per_direction * layers * directions or x.dim() != 3:
        return torch.lstm(*args)
    x = x.transpose(0, 1) if batch_first else x
    last_hidden, last_cells = [], []
    for layer in range(layers):
        results = []
        for direction in range(directions):
            number = layer * directions + direction
            own = weights[number * per_direction : (number + 1) * per_direction]
            hidden, cells, _ = torch.ops.ipu_model.lstm(
                x, states[0][number], states[1][number], *own[:2], *(own[2:] or (None, None)), bool(direction)
            )
            results.append(hidden)
            last_hidden.append(hidden[0 if direction else -1])
            last_cells.append(cells[0 if direction else -1])
        x = torch.cat(results, -1) if bidirectional else results[0]
        if dropout and training and layer < layers - 1:
            x = F.dropout(x, dropout)
    output = x.transpose(0, 1) if batch_first else x
    return output, torch.stack(last_hidden), torch.stack(last_cells)


def _as_it_is(x: Tensor) -> Tensor:
    return x


def forward(
    x: Tensor, hidden: Tensor, cell: Tensor, w_x: Tensor, w_h: Tensor, b_x: Tensor | None, b_h: Tensor | None,
    reverse: bool, stored: Stored = _as_it_is,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return all hidden states `[T, N, H]`, cells `[T, N, H]` and gates `[T, N, 4 H]`."""
    steps, rows, _ = x.shape
    inputs = F.linear(x, w_x, b_x)
    inputs = stored(inputs if b_h is None else inputs.add_(b_h))
    gates = inputs.new_empty(steps, rows, w_x.shape[0])
    cells, hiddens = (inputs.new_empty(steps, rows, w_h.shape[1]) for _ in range(2))
    for step in _order(steps, reverse):
        before = stored(torch.addmm(inputs[step], hidden, w_h.t()))
        i, f, g, o = before.chunk(4, 1)
        gates[step] = stored(torch.cat([i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()], 1))
        i, f, g, o = gates[step].chunk(4, 1)
        cell = cells[step] = stored(f * cell + i * g)
        hidden = hiddens[step] = stored(o * stored(cell.tanh()))
    return hiddens, cells, gates


def backward(
    d_hiddens: Tensor | None, d_cells: Tensor | None, x: Tensor, hidden: Tensor, cell: Tensor, w_x: Tensor, w_h: Tensor,
    hiddens: Tensor, cells: Tensor, gates: Tensor, reverse: bool, wanted: Sequence[bool], stored: Stored = _as_it_is,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the gradients of x, hidden and cell (empty where not `wanted`), w_x, w_h and of either bias."""
    order = _order(len(x), reverse)
    d_gates = torch.empty_like(gates)
    d_hidden, d_cell = torch.zeros_like(hidden), torch.zeros_like(cell)
    past_hiddens, past_cells = _past(hidden, hiddens, reverse), _past(cell, cells, reverse)
    squashed = stored(cells.tanh())
    for step in reversed(order):
        i, f, g, o = gates[step].chunk(4, 1)
        d_hidden = stored(d_hidden if d_hiddens is None else d_hidden + d_hiddens[step])
        d_cell = d_cell if d_cells is None else d_cell + d_cells[step]
        d_cell = stored(d_cell + stored(d_hidden * o) * (1 - squashed[step] ** 2))
        d_squashed = stored(
            torch.cat([d_cell * g, d_cell * past_cells[step], d_cell * i, d_hidden * squashed[step]], 1)
        )
        slopes = torch.cat([i * (1 - i), f * (1 - f), 1 - g**2, o * (1 - o)], 1)
        d_gates[step] = stored(d_squashed * slopes)
        d_cell = d_cell * f
        if step != order[0] or wanted[1]:
            d_hidden = d_gates[step] @ w_h
    flat = d_gates.flatten(0, 1)
    return (
        d_gates @ w_x if wanted[0] else x.new_empty(0),
        d_hidden if wanted[1] else x.new_empty(0),
        d_cell if wanted[2] else x.new_empty(0),
        flat.t() @ x.flatten(0, 1),
        flat.t() @ past_hiddens.flatten(0, 1),
        flat.sum(0),
    )


def _order(steps: int, reverse: bool) -> range:
    return range(steps - 1, -1, -1) if reverse else range(steps)


def _past(first: Tensor, states: Tensor, reverse: bool) -> Tensor:
    """Return the states before each step."""
    first = first.unsqueeze(0)
    return torch.cat([states[1:], first] if reverse else [first, states[:-1]])


@torch.library.custom_op("ipu_model::lstm", mutates_args=())
def _forward(
    x: Tensor, hidden: Tensor, cell: Tensor, w_x: Tensor, w_h: Tensor, b_x: Tensor | None, b_h: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return forward(x, hidden, cell, w_x, w_h, b_x, b_h, reverse)


@torch.library.custom_op("ipu_model::lstm_backward", mutates_args=())
def _backward(
    d_hiddens: Tensor | None, d_cells: Tensor | None, x: Tensor, hidden: Tensor, cell: Tensor, w_x: Tensor, w_h: Tensor,
    hiddens: Tensor, cells: Tensor, gates: Tensor, reverse: bool, wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    found = backward(d_hiddens, d_cells, x, hidden, cell, w_x, w_h, hiddens, cells, gates, reverse, wanted)
    return found[0], found[1], found[2], found[3], found[4], found[5]


@_forward.register_fake
def _(x: Tensor, hidden: Tensor, cell: Tensor, w_x: Tensor, w_h: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    steps, rows, _ = x.shape
    states = w_h.shape[1]
    return tuple(x.new_empty(steps, rows, width) for width in (states, states, 4 * states))


@_backward.register_fake
def _(*args: Any) -> tuple[Tensor, ...]:
    w_x, w_h = args[5:7]
    asked = [t.new_empty(t.shape if want else 0) for t, want in zip(args[2:5], args[11])]
    return (*asked, w_x.new_empty(w_x.shape), w_h.new_empty(w_h.shape), w_x.new_empty(w_x.shape[0]))


def _keep_arguments(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:5], *output)
    ctx.reverse, ctx.has_biases = inputs[7], inputs[5] is not None
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, d_hiddens: Tensor | None, d_cells: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
    if d_hiddens is None and d_cells is None:
        return (None,) * 8
    wanted = list(ctx.needs_input_grad[:3])
    found = torch.ops.ipu_model.lstm_backward(d_hiddens, d_cells, *ctx.saved_tensors, ctx.reverse, wanted)
    states = [gradient if want else None for gradient, want in zip(found, wanted)]
    biases = [found[5] if ctx.has_biases else None] * 2
    return (*states, found[3], found[4], *biases, None)


_forward.register_autograd(_gradients, setup_context=_keep_arguments)

# The ops of the graph, forward and backward.
LSTM = torch.ops.ipu_model.lstm.default
LSTM_BACKWARD = torch.ops.ipu_model.lstm_backward.default
