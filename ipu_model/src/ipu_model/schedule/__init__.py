"""When everything happens: passes of stages, copies between IPUs, transfers with the host, weight updates.

A pure function of a program and its costs. What there is to do is in `work`, in which order in `plan`, how long it
takes together in `timing`; `run` adds it up.
"""

from ipu_model.schedule.of import schedule_of
from ipu_model.schedule.plan import Shape
from ipu_model.schedule.result import CycleTime, Schedule, StageTime
from ipu_model.schedule.run import run
from ipu_model.schedule.timing import Conditions
from ipu_model.schedule.work import StageWork, UpdateWork, Workload

__all__ = [
    "Conditions",
    "CycleTime",
    "Schedule",
    "Shape",
    "StageTime",
    "StageWork",
    "UpdateWork",
    "Workload",
    "run",
    "schedule_of",
]
