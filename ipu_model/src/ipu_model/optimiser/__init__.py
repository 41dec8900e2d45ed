"""Optimisers as the device runs them: what is compiled in, the state, and the update of every weight."""

from __future__ import annotations

from ipu_model.optimiser.spec import FAMILIES, Hyper, OptimiserSpec
from ipu_model.optimiser.updater import Updater

__all__ = ["FAMILIES", "Hyper", "OptimiserSpec", "Updater"]
