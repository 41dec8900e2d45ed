"""`ipu_print_tensor`: shows a tensor, and its gradient, whenever the device computes them."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import torch
from torch import Tensor

from ipu_model.capture import tracing
from ipu_model.capture.graph import Printed
from ipu_model.compute.printing import PrintLayout
from poptorch.ops._tracing import check, require_tensor

_FLOAT_FORMATS = ("auto", "fixed", "scientific", "none")


def ipu_print_tensor(
    tensor: Tensor,
    title: str = "",
    print_gradient: bool = True,
    summarise_threshold: int = 1000,
    edge_items: int = 3,
    max_line_width: int = 80,
    digits: int = 4,
    float_format: str = "auto",
    separator: str = ", ",
    open_bracket: str = "(",
    close_bracket: str = ")",
) -> Tensor:
    """Return `tensor`, and print it in every micro-batch that computes it; use what is returned, or nothing prints.

    The device writes to stderr: `title: (...)`, and in training with `print_gradient` the gradient of the loss under
    the title with `_gradient` added. Without a title the name of the tensor (`getTensorNames`) stands there. On the
    CPU nothing is printed.

    `summarise_threshold` is the most elements that are printed in full (0: all), `edge_items` how many of each end are
    left otherwise, `max_line_width` 0 breaks no line. `digits` are significant digits; 0 does not align columns.
    `float_format` is "auto", "fixed", "scientific" or "none". Of `separator` and brackets the first character counts.

    Raises:
        Error: not a tensor, or a count that is no whole number from 0 on.
        KeyError: another `float_format`.
    """
    require_tensor("poptorch.ipu_print_tensor", tensor)
    if float_format not in _FLOAT_FORMATS:
        raise KeyError(f"float_format {float_format!r}: use one of {', '.join(_FLOAT_FORMATS)}")
    layout = PrintLayout(
        summarise_threshold, edge_items, max_line_width, digits, float_format,
        separator[:1], open_bracket[:1], close_bracket[:1],
    )  # fmt: skip
    for name in ("summarise_threshold", "edge_items", "max_line_width", "digits"):
        count: object = getattr(layout, name)
        fits = isinstance(count, int) and count >= 0
        check(fits, f"poptorch.ipu_print_tensor: {name} must be a whole number from 0 on, not {count!r}.")
    if tracing.current() is None:
        return tensor
    printed = Printed(str(title), astuple(layout))
    if print_gradient and tensor.requires_grad and torch.is_grad_enabled():
        result: Tensor = _PrintedWithGradient.apply(tensor, printed)  # type: ignore[no-untyped-call]
        return result
    return _noted(tensor.clone(), printed)


class _PrintedWithGradient(torch.autograd.Function):
    """A copy that is printed, whose gradient is a copy that is printed."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, printed: Printed) -> Tensor:
        result = _noted(tensor.clone(), printed)
        trace = tracing.current()
        node = trace.node_of(result) if trace is not None else None
        title = printed.title and f"{printed.title}_gradient"
        ctx.printed = Printed(title, printed.layout, gradient_of=node.name if node is not None else "")
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _noted(gradients[0].clone(), ctx.printed), None


def _noted(copy: Tensor, printed: Printed) -> Tensor:
    trace = tracing.current()
    if trace is not None:
        trace.hint(copy, printed=printed)
    return copy
