"""Attributes that a program adds to an optimiser after the executor first saw it, which the device ignores."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch

from ipu_model.optimiser.spec import FAMILIES

_logger = logging.getLogger("poptorch::python")

# Keys that PyTorch's own classes put into groups, whatever the device makes of them.
_TORCH_KEYS = frozenset({
    "params", "param_names", "foreach", "maximize", "capturable", "differentiable", "fused", "amsgrad", "centered",
    "decoupled_weight_decay",
})  # fmt: skip
_OPTIONS = frozenset({
    "defaults", "state", "param_groups", "variable_attrs", "loss_scaling", "accum_type", "velocity_accum_type",
    "first_order_momentum_accum_type", "second_order_momentum_accum_type", "max_grad_norm", "use_combined_accum",
    "use_tf_variant", "bias_correction", "max_weight_norm",
})  # fmt: skip


class AttributeNames:
    """The attribute names that one executor has seen; keep one for each executor."""

    def __init__(self) -> None:
        self._known: dict[str, set[str]] = {}
        self._said: set[str] = set()

    def observe(self, optimizer: torch.optim.Optimizer, family: str, *, relax: bool) -> None:
        """Remember the names at the first call; later, warn once (debug level if `relax`) of each new one."""
        found = _names(optimizer)
        first = not self._known
        for place, names in found.items():
            known = self._known.setdefault(
                place, set(self._known.get("group 0 attribute", ())) if _is_group(place) else set()
            )
            expected = (
                known | _OPTIONS
                if place == "optimizer attribute"
                else known | _TORCH_KEYS | {*FAMILIES[family]}
            )
            unexpected = sorted(names - expected)
            known |= names
            if unexpected and not first:
                level = logging.DEBUG if relax else logging.WARNING
                _logger.log(level, "Ignoring unexpected %s in %s optimizer: %s", place, family, unexpected)

    def say_once(self, message: str) -> None:
        """Log `message` as a warning unless this executor has done so before."""
        if message not in self._said:
            self._said.add(message)
            _logger.warning(message)


def _is_group(place: str) -> bool:
    return place.startswith("group ")


def _names(optimizer: torch.optim.Optimizer) -> Mapping[str, set[str]]:
    """Return the names by the place where they stand, as messages call it."""
    groups = {f"group {i} attribute": set(group) for i, group in enumerate(optimizer.param_groups)}
    # Schedulers replace methods of the object; that is no attribute of the optimisation.
    own = {
        name for name, value in vars(optimizer).items() if not name.startswith("_") and not callable(value)
    }
    return {**groups, "optimizer attribute": own, "default group variable": set(optimizer.defaults)}
