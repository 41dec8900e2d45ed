"""How a program scales over replicas: theory, model, and what the difference is spent on."""

from __future__ import annotations

from ipu_model.scaling.amdahl import constant_share, limit, speed_up
from ipu_model.scaling.curve import ScalingPoint, scaling
from ipu_model.scaling.update import UpdateTime, update_time

__all__ = ["ScalingPoint", "UpdateTime", "constant_share", "limit", "scaling", "speed_up", "update_time"]
