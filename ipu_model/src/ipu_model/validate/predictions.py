"""What the model says about each published row, computed when asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import cache

import numpy as np

from ipu_model.predict import profile_program
from ipu_model.predict.calibration import Calibration, calibrated
from ipu_model.predict.costs import costs_of
from ipu_model.predict.device import Device
from ipu_model.predict.hardware import chip, system_named
from ipu_model.predict.host import HostWork, Loading
from ipu_model.predict.order import order_of
from ipu_model.predict.planner import Precision, contraction, matrix_product
from ipu_model.predict.profile import PhaseCycles, Profile
from ipu_model.predict.program import Program
from ipu_model.predict.time import StageTime, time_of
from ipu_model.predict.vertices import MatrixUnit, conv_1x1
from ipu_model.validate import programs

KIBIBYTE = 1024
NO_HOST = HostWork()
FITTED = "fitted on the published program"


class Predictions:
    """The modelled value of each published row, by the row's id, with constants that may be other than the data's.

    Profiles are shared by the rows that need them, so an object is worth keeping for one pass over the rows.
    """

    def __init__(self, calibration: Calibration | None = None) -> None:
        self._calibration = calibration or calibrated()
        self._hosts = self._calibration.published_host
        self._profile = cache(self._profiled)
        self._by_id = self._table()

    def __contains__(self, row_id: str) -> bool:
        return row_id in self._by_id

    def __getitem__(self, row_id: str) -> float:
        return self._by_id[row_id]()

    def _table(self) -> Mapping[str, Callable[[], float]]:
        found: dict[str, Callable[[], float]] = {}
        for accumulation in (3, 8):
            found |= self._trace(accumulation)
        found |= self._differences()
        found |= self._calls()
        found |= {f"amp.{n}": lambda n=n: on_tile_product(n) for n in (16, 64, 256, 1024)}  # type: ignore[misc]  # a default binds n
        return found | {
            "day03.ipu1": self._ipu_1_against_ipu_0,
            "day03.memory.half": lambda: self._fullest_tile(programs.HALF),
            "day03.memory.float": lambda: self._fullest_tile(programs.FLOAT),
            "day03.compilation": lambda: self._day03(accumulation=3).compilation_seconds,
            "mlperf.step": lambda: self._profile(programs.mlperf_program, NO_HOST).device_seconds_per_call,
            "link.host_to_device": lambda: system_named("M2000").host_to_device_bytes_per_second / 1e9,
            "link.device_to_host": lambda: system_named("M2000").device_to_host_bytes_per_second / 1e9,
            "small.forward": lambda: self._small_stage(0).forward,
            "small.backward": lambda: self._small_stage(0).backward + self._small_stage(0).recompute,
            "small.last": lambda: self._small_stage(1).total,
            "mnist.update": self._digits_update,
            "gemm": lambda: large_product(Device(chip("Bow"), self._calibration)),
            "triad": triad,
            "mnist.compilation": lambda: self._mnist().compilation_seconds,
            "mnist.compilation.inference": lambda: (
                self._profile(programs.digits_inference_program, NO_HOST).compilation_seconds
            ),
        }

    def _trace(self, accumulation: int) -> dict[str, Callable[[], float]]:
        def cycles() -> PhaseCycles:
            return self._day03(accumulation=accumulation).cycles[0]

        prefix = f"day03.trace.ga{accumulation}"
        found: dict[str, Callable[[], float]] = {
            f"{prefix}.{field.name}": lambda name=field.name: float(getattr(cycles(), name))  # type: ignore[misc]
            for field in fields(PhaseCycles)
        }
        found[f"{prefix}.total"] = lambda: cycles().total
        found[f"day03.share.ga{accumulation}"] = lambda: 100 * cycles().on_tile_execute / cycles().total
        found[f"day03.received.ga{accumulation}"] = lambda: self._received(accumulation)
        return found

    def _received(self, accumulation: int) -> float:
        """Return MiB of images that stage 0 reads in one call; labels go to IPU 1."""
        program = programs.day03_program(accumulation=accumulation)
        images = program.step.inputs[0]
        return images.elements * images.dtype.bytes * program.batching.steps / KIBIBYTE**2

    def _differences(self) -> dict[str, Callable[[], float]]:
        """Return what one further micro-batch takes, and what is left of a call without micro-batches."""

        def of(name: str, accumulation: int) -> float:
            return float(getattr(self._day03(accumulation=accumulation).cycles[0], name))

        def further(name: str) -> float:
            return (of(name, 8) - of(name, 3)) / 5

        found: dict[str, Callable[[], float]] = {
            f"day03.micro_batch.{field.name}": lambda name=field.name: further(name)  # type: ignore[misc]
            for field in fields(PhaseCycles)
        }
        found["day03.update.on_tile_execute"] = lambda: of("on_tile_execute", 3) - 3 * further("on_tile_execute")
        return found

    def _calls(self) -> dict[str, Callable[[], float]]:
        slow, fast = self._hosts.day03_converted_image_seconds, self._hosts.day03_byte_image_seconds
        return {
            "day03.calls.ga3": lambda: self._calls_per_second(slow, accumulation=3),
            "day03.calls.ga8": lambda: self._calls_per_second(slow, accumulation=8),
            "day03.calls.di4": lambda: self._calls_per_second(slow, iterations=4),
            "day03.calls.byte": lambda: self._calls_per_second(fast, iterations=4, eight_bit=True),
            "day03.calls.async": lambda: self._calls_per_second(
                fast, Loading.ASYNC, iterations=4, eight_bit=True
            ),
            "mnist.calls": lambda: 1.0 / self._mnist().call_seconds,
        }  # fmt: skip

    def _calls_per_second(self, image_seconds: float, loading: Loading = Loading.SYNC, **settings: int | bool) -> float:
        host = HostWork(
            image_seconds, self._hosts.day03_call_seconds, loading, source="fitted on the published program"
        )
        return 1.0 / self._day03(host, **settings).call_seconds

    def _day03(self, host: HostWork = NO_HOST, **settings: int | bool) -> Profile:
        return self._profile(programs.day03_program, host, **settings)

    def _mnist(self) -> Profile:
        rate = self._hosts.mnist_image_seconds
        host = HostWork(rate, loading=Loading.ASYNC, source=FITTED)
        return self._profile(programs.digits_program, host)

    def _ipu_1_against_ipu_0(self) -> float:
        cycles = self._day03(accumulation=8).cycles
        return cycles[1].on_tile_execute / cycles[0].on_tile_execute

    def _digits_update(self) -> float:
        profile = self._mnist()
        device = profile.device_seconds_per_call * profile.machine.clock_hz
        return device * (1 - profile.shares["run start"]) / programs.digits_program().batching.device_iterations

    def _fullest_tile(self, dtype: object) -> float:
        profile = self._profile(programs.day03_program, NO_HOST, dtype=dtype, accumulation=3)
        return profile.memory.max_tile_bytes / KIBIBYTE

    def _small_stage(self, index: int) -> StageTime:
        """Return what a stage of day 02's ResNet-50 takes for one micro-batch."""
        program = self._calibrated(programs.small_resnet50_program())
        return time_of(program, costs_of(program.step, program.settings), order_of(program)).stage_times[index]

    def _profiled(self, program: Callable[..., Program], host: HostWork, **settings: object) -> Profile:
        return profile_program(self._calibrated(program(**settings)), host)

    def _calibrated(self, program: Program) -> Program:
        device = replace(program.settings.device, calibration=self._calibration)
        return replace(program, settings=replace(program.settings, device=device))


def on_tile_product(rows: int) -> float:
    """Return cycles of [rows, 16] x [16, 16] on one tile, fp16 with half partials."""
    one, unit = np.array([1.0]), MatrixUnit(element_bytes=2, partial_bytes=2, units=16, channel_group=16, workers=6)
    return float(conv_1x1(np.array([float(rows)]), one, one, one, unit)[0])


def large_product(device: Device) -> float:
    """Return TFLOP/s of 4096 x 4096 x 1024 on a whole chip, fp16 with half partials."""
    problem = matrix_product(4096, 4096, 1024, 2)
    work = contraction(problem, device, Precision(half_partials=True))
    return work.flops / device.chip.seconds(device.total(work.cycles)) / 1e12


def triad() -> float:
    """Return TB/s of a = b + s c where each tile makes two loads and a store on its data paths in every cycle.

    That is the chip's limit, which a hand-written vertex reaches; the vertices that other formulas describe
    take two to three cycles for what this takes one.
    """
    gc200 = chip("GC200")
    return 3 * gc200.data_path_bytes * gc200.tiles * gc200.clock_hz / 1e12
