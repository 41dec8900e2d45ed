"""Attributes added to an optimiser after the executor first saw it, which the device ignores."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch

from ipu_model.optimiser.spec import FAMILIES

_logger = logging.getLogger("poptorch::python")

# Keys that PyTorch's own classes put into groups, whatever the device makes of them.
_TORCH_KEYS = frozenset({
    "params", "param_names", "foreach", "maximize", "capturable", "differentiable", "fused", "amsgrad",
    "centered", "decoupled_weight_decay",
})  # fmt: skip
_OPTIONS = frozenset({
    "defaults", "state", "param_groups", "variable_attrs", "loss_scaling", "accum_type",
    "velocity_accum_type", "first_order_momentum_accum_type", "second_order_momentum_accum_type",
    "max_grad_norm", "use_combined_accum", "use_tf_variant", "bias_correction", "max_weight_norm",
})  # fmt: skip
_OBJECT = "optimizer attribute"
_DEFAULTS = "default group variable"


class AttributeNames:
    """The attribute names that one executor has seen; keep one for each executor."""

    def __init__(self) -> None:
        self._known: dict[str, set[str]] = {}
        self._said: set[str] = set()

    def observe(self, optimizer: torch.optim.Optimizer, family: str, *, relax: bool) -> None:
        """Remember the names at the first call; later, warn once (debug level if `relax`) of each new one."""
        first = not self._known
        level = logging.DEBUG if relax else logging.WARNING
        for place, names in _names(optimizer).items():
            # A group that came later is measured by the first one.
            known = self._known.setdefault(place, set(self._known.get(_group(0), ())))
            unexpected = sorted(names - known - _read_anyway(place, family))
            known |= names
            if unexpected and not first:
                _logger.log(level, "Ignoring unexpected %s in %s optimizer: %s", place, family, unexpected)

    def say_once(self, message: str) -> None:
        """Log `message` as a warning unless this executor has done so before."""
        if message not in self._said:
            self._said.add(message)
            _logger.warning(message)


def _group(index: int) -> str:
    return f"group {index} attribute"


def _read_anyway(place: str, family: str) -> frozenset[str]:
    """Return the names that the device takes notice of, or that PyTorch sets by itself."""
    return _OPTIONS if place == _OBJECT else _TORCH_KEYS.union(FAMILIES[family])


def _names(optimizer: torch.optim.Optimizer) -> Mapping[str, set[str]]:
    """Return the names by the place where they stand, as messages call it; groups last."""
    # Schedulers replace methods of the object; that is no attribute of the optimisation.
    own = {name for name, value in vars(optimizer).items() if not name.startswith("_") and not callable(value)}
    groups = {_group(i): set(group) for i, group in enumerate(optimizer.param_groups)}
    return {_OBJECT: own, _DEFAULTS: set(optimizer.defaults), **groups}
