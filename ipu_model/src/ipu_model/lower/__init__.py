"""From a captured graph to the work of an IPU: the cost of every op and of every trainable tensor."""

from ipu_model.lower.graph import lower
from ipu_model.lower.result import Layout, Lowered, OpCost, VariableCost, total_of
from ipu_model.lower.settings import CostSettings
from ipu_model.lower.variables import accumulation_costs, update_costs, variable_ipus

__all__ = [
    "CostSettings",
    "Layout",
    "Lowered",
    "OpCost",
    "VariableCost",
    "accumulation_costs",
    "lower",
    "total_of",
    "update_costs",
    "variable_ipus",
]
