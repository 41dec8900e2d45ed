"""What ops cost on one IPU: cycles, temporary memory and FLOPs, one family of formulas in each file.

Every function is pure: sizes and a `Device` in, a `Work` out. `ipu_model.lower` says which op of a captured
graph is which kind of work.
"""

from ipu_model.cost.calibration import Constants, calibrated
from ipu_model.cost.device import Device, Element
from ipu_model.cost.work import FREE, Cycles, Work

__all__ = ["FREE", "Constants", "Cycles", "Device", "Element", "Work", "calibrated"]
