"""`MultiConv`: convolutions that the device computes together."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import torch
from typing_extensions import Self

from ipu_model.capture.graph import mark
from ipu_model.errors import require
from ipu_model.step import MultiConvolution
from poptorch.enums import MultiConvPlanType
from poptorch.ops._tracing import Body, check

_PARTIALS = {torch.float32: "float", torch.float16: "half"}

# The context whose body is being traced; contexts must not nest, also not those of different objects.
_open: ContextVar[Body | None] = ContextVar("poptorch_multi_conv", default=None)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


class MultiConv:
    """Compute the convolutions of the `with` body as one; their results stay those of separate ones.

    Other ops in the body are allowed. Setters return the object; a single value goes for all convolutions. When traced,
    raises `poptorch.Error` for a body without convolution, a body inside another, and a list of settings whose length
    is not the number of convolutions. Setters raise `ValueError` for other partials types and for dithering that is no
    bool, else `AssertionError` for other types.
    """

    def __init__(self) -> None:
        # By the names of the engine's hints: one value for each convolution, or one for all.
        self._settings: dict[str, list[Any]] = {}
        self._body: Body | None = None

    def availableMemoryProportions(self, value: float | Sequence[float] | None) -> Self:
        """Set the share of tile memory for temporary data: a float, one per convolution, or `None`."""
        values = _listed(value)
        require(
            value is None or (values and all(isinstance(item, float) for item in values)),
            f"Invalid available memory proportion! It must be a float, a list of floats or None; got {value!r}.",
        )
        return self._set("available_memory_proportion", None if value is None else values)

    def partialsTypes(self, value: torch.dtype | Sequence[torch.dtype]) -> Self:
        """Set the accumulator types: `torch.float` or `torch.half`, or one per convolution."""
        values = _listed(value)
        names = [_PARTIALS[item] for item in values if isinstance(item, torch.dtype) and item in _PARTIALS]
        if not values or len(names) < len(values):
            raise ValueError(
                f"Invalid partials types: they are torch.float or torch.half, or a list of these; got {value!r}."
            )
        return self._set("partials_type", names)

    def planType(self, value: MultiConvPlanType | None) -> Self:
        """Set whether the convolutions run side by side or one after another; `None` leaves it open."""
        message = f"Invalid plan type! It must be a poptorch.MultiConvPlanType or None; got {value!r}."
        require(value is None or isinstance(value, MultiConvPlanType), message)
        return self._set("plan_type", None if value is None else [value.name.lower()])

    def perConvReservedTiles(self, value: int) -> Self:
        """Set how many tiles each convolution gets at least."""
        require(isinstance(value, int), f"Invalid number of reserved tiles! It must be an int; got {value!r}.")
        return self._set("per_conv_reserved_tiles", [value])

    def cycleBackOff(self, value: float) -> Self:
        """Set how far a plan may be from the fastest one, a float."""
        require(isinstance(value, float), f"Invalid cycle back-off! It must be a float; got {value!r}.")
        return self._set("cycle_back_off", [value])

    def enableConvDithering(self, value: bool | Sequence[bool] | None) -> Self:
        """Choose whether convolutions start on different tiles: a bool, one per convolution, or `None`."""
        values = _listed(value)
        if value is not None and not all(isinstance(item, bool) for item in values):
            raise ValueError(f"Convolution dithering must be bool or list of bools; got {value!r}.")
        return self._set("conv_dithering", None if value is None else values)

    def __enter__(self) -> None:
        body, around = Body.begin(), _open.get()
        if body is not None:
            nested = "Nested poptorch.MultiConv operations are not supported."
            outermost = around is None or not around.is_current
            check(outermost, f"{nested} End one `with` body before the next one begins.")
            self._body = body
            _open.set(body)

    def __exit__(self, type: object, value: object, traceback: object) -> None:
        body, self._body = self._body, None
        if body is not None:
            _open.set(None)
            if type is None and body.is_current:
                self._note(body)

    def _note(self, body: Body) -> None:
        """Write the settings onto the convolutions of the body; `group` names the first of them."""
        convolutions = [node for node in body.ops() if node.target == torch.ops.aten.convolution.default]
        check(
            convolutions,
            "Unexpected end_multi_conv: the body of poptorch.MultiConv holds no convolution. Remove the context, or "
            "move the convolutions into it.",
        )
        count = len(convolutions)
        for name, values in self._settings.items():
            given = f"{len(values)} values of {name} were set for {count} convolutions"
            check(len(values) in (1, count), f"poptorch.MultiConv: {given}. Give one value, or one for each.")
        for index, node in enumerate(convolutions):
            own: dict[str, Any] = {name: values[index % len(values)] for name, values in self._settings.items()}
            mark(node, multi_convolution=MultiConvolution(convolutions[0].name, count, **own))

    def _set(self, name: str, values: list[Any] | None) -> Self:
        self._settings.pop(name, None)
        if values is not None:
            self._settings[name] = values
        return self
