"""What the model says about each published row, computed when asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ipu_model.errors import Error
from ipu_model.predict import profile_program
from ipu_model.predict.calibration import Calibration, calibrated
from ipu_model.predict.costs import costs_of
from ipu_model.predict.device import Device
from ipu_model.predict.hardware import chip
from ipu_model.predict.host import HostWork, Loading
from ipu_model.predict.links import ring_of
from ipu_model.predict.memory import categories
from ipu_model.predict.ops.updates import variable_ipus
from ipu_model.predict.order import order_of
from ipu_model.predict.planner import Precision, contraction, matrix_product
from ipu_model.predict.profile import Memory, PhaseCycles, Profile
from ipu_model.predict.program import Program
from ipu_model.predict.time import StageTime, time_of
from ipu_model.predict.vertices import MatrixUnit, conv_1x1
from ipu_model.validate import programs
from ipu_model.validate.programs.bert import SEQUENCES_PER_PACK

KIBIBYTE, MEBIBYTE = 1024, 1024**2
NO_HOST = HostWork()
FITTED = "fitted on the published program"
Value = Callable[[], float]
Built = Callable[[], Program]

# The category of memory of each row about code, by the end of its id.
_CODE = {
    "control_code": categories.CONTROL_CODE,
    "exchange_code": categories.EXCHANGE_CODE,
    "vertex_state": categories.VERTEX_STATE,
    "vertex_code": categories.VERTEX_CODE,
    "host_exchange_code": categories.HOST_EXCHANGE_CODE,
    "global_exchange_code": categories.GLOBAL_EXCHANGE_CODE,
}

# Programs whose number is the rate of the device, by the row's id.
_RATES: Mapping[str, Built] = {
    "blind.B3": programs.user_guide_program,
    **{
        f"blind.B{b}": partial(programs.resnet50_inference_program, batch=n)
        for b, n in ((4, 1), (5, 4), (6, 16), (7, 64))
    },
    "blind.B8": partial(programs.vit_inference_program, batch=8),
    "blind.B9": partial(programs.vit_inference_program, batch=32),
    "blind.B11": programs.bert_base_program,
    "blind.B13": programs.vit_program,
    "blind.B14": programs.swin_program,
    "blind.B15": programs.efficientnet_program,
}

# F1 reserved I/O tiles, and F2 is "the same in fp32"; how many is not published, so PopART's rule is assumed: the bytes
# streamed in a micro-batch over a tile's memory, rounded up to a power of two (hardware reference, section D). That is
# 42 and 45 for F1, 15 and 30 for F2, and PopTorch reserves 32 at least.
_IO_TILES_OF_F1, _IO_TILES_OF_F2 = 64, 32

# Programs that ran on hardware or were out of memory, by the row's id.
_VERDICTS: Mapping[str, Built] = {
    "fits.day03.half": partial(programs.day03_program, accumulation=3),
    "fits.day03.float": partial(programs.day03_program, dtype=programs.FLOAT, accumulation=3),
    "fits.F1": partial(programs.resnet50_inference_program, batch=90, io_tiles=_IO_TILES_OF_F1),
    "fits.F1.reserved": partial(programs.resnet50_inference_program, batch=96, io_tiles=_IO_TILES_OF_F1),
    "fits.F1.more": partial(programs.resnet50_inference_program, batch=96),
    "fits.F2.16": partial(
        programs.resnet50_inference_program, batch=16, dtype=programs.FLOAT, io_tiles=_IO_TILES_OF_F2
    ),
    "fits.F2.32": partial(
        programs.resnet50_inference_program, batch=32, dtype=programs.FLOAT, io_tiles=_IO_TILES_OF_F2
    ),
    "fits.F3.18": programs.user_guide_program,
    "fits.F3.20": programs.mlperf_program,
    "fits.F3.22": programs.bow_training_program,
    "fits.F4.2": partial(programs.bert_inference_program, batch=2),
    "fits.F4.4": partial(programs.bert_inference_program, batch=4),
    "fits.B1": programs.mlperf_pod64_program,
    "fits.B11": programs.bert_base_program,
    "fits.B12": programs.bert_large_program,
    "fits.B13": programs.vit_program,
    "fits.B14": programs.swin_program,
    "fits.B15": programs.efficientnet_program,
}


class Predictions:
    """The modelled value of each published row, by the row's id, with constants that may be other than the data's.

    Profiles are shared by the rows that need them, so an object is worth keeping for one pass over the rows.
    """

    def __init__(self, calibration: Calibration | None = None) -> None:
        self._calibration = calibration or calibrated()
        self._hosts = self._calibration.published_host
        self._profiles = cache(self._profiled)
        self._by_id = self._table()

    def __contains__(self, row_id: str) -> bool:
        return row_id in self._by_id or row_id in _VERDICTS

    def value(self, row_id: str) -> float:
        """Return the modelled value of a number. Raises ``Error`` for a row without a line in this file."""
        if row_id not in self._by_id:
            raise Error(f"Nothing says how to model the row {row_id}: add a line to a table in {Path(__file__).name}.")
        return self._by_id[row_id]()

    def memory(self, row_id: str) -> Memory:
        """Return the modelled memory of a program whose outcome is published. Raises ``Error`` as ``value`` does."""
        if row_id not in _VERDICTS:
            raise Error(f"Nothing builds the program of {row_id}: add a line to _VERDICTS in {Path(__file__).name}.")
        return self._profile(_VERDICTS[row_id]).memory

    def _table(self) -> Mapping[str, Value]:
        found: dict[str, Value] = {}
        for accumulation in (3, 8):
            found |= self._trace(accumulation)
        found |= self._differences()
        found |= self._calls()
        found |= self._day02()
        found |= self._blind()
        for end, category in _CODE.items():
            found[f"guide.code.{end}"] = partial(self._growth, category)
            found[f"guide.code.one.{end}"] = partial(self._bert_large_code, category)
            found[f"small.memory.{end}"] = partial(self._small_code, category)
        found |= {f"amp.{n}": partial(on_tile_product, n) for n in (16, 64, 256, 1024)}
        return found | {
            "day03.ipu1": self._ipu_1_against_ipu_0,
            "day03.memory.half": lambda: self._fullest_tile(programs.HALF),
            "day03.memory.float": lambda: self._fullest_tile(programs.FLOAT),
            "day03.compilation": lambda: self._day03(accumulation=3).compilation_seconds,
            "mlperf.step": lambda: self._profile(programs.mlperf_program).device_seconds_per_call,
            "mnist.update": self._digits_update,
            "gemm": partial(self._large_product, 1024, 2),
            "mnist.compilation": lambda: self._mnist().compilation_seconds,
            "mnist.compilation.inference": lambda: self._profile(programs.digits_inference_program).compilation_seconds,
        }

    def _trace(self, accumulation: int) -> dict[str, Value]:
        def cycles() -> PhaseCycles:
            return self._day03(accumulation=accumulation).cycles[0]

        def of(name: str) -> float:
            return float(getattr(cycles(), name))

        prefix = f"day03.trace.ga{accumulation}"
        found: dict[str, Value] = {f"{prefix}.{each.name}": partial(of, each.name) for each in fields(PhaseCycles)}
        found[f"{prefix}.total"] = lambda: cycles().total
        found[f"day03.share.ga{accumulation}"] = lambda: 100 * cycles().on_tile_execute / cycles().total
        found[f"day03.received.ga{accumulation}"] = lambda: self._received(accumulation)
        return found

    def _received(self, accumulation: int) -> float:
        """Return MiB of images that stage 0 reads in one call; labels go to IPU 1."""
        program = programs.day03_program(accumulation=accumulation)
        images = program.step.inputs[0]
        return images.elements * images.dtype.bytes * program.batching.steps / MEBIBYTE

    def _differences(self) -> dict[str, Value]:
        """Return what one further micro-batch takes, and what is left of a call without micro-batches."""

        def of(name: str, accumulation: int) -> float:
            return float(getattr(self._day03(accumulation=accumulation).cycles[0], name))

        def further(name: str) -> float:
            return (of(name, 8) - of(name, 3)) / 5

        found: dict[str, Value] = {
            f"day03.micro_batch.{each.name}": partial(further, each.name) for each in fields(PhaseCycles)
        }
        found["day03.update.on_tile_execute"] = lambda: of("on_tile_execute", 3) - 3 * further("on_tile_execute")
        return found

    def _calls(self) -> dict[str, Value]:
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

    def _day02(self) -> dict[str, Value]:
        """Return the rows of day 02's ResNet-50: times of its stages, all-reduces, compilation and memory."""
        return {
            "small.forward": lambda: self._small_stage(0).forward,
            "small.backward": lambda: self._small_stage(0).backward + self._small_stage(0).recompute,
            "small.last": lambda: self._small_stage(1).total,
            "small.all_reduce.first": partial(self._all_reduces, 0),
            "small.all_reduce.second": partial(self._all_reduces, 1),
            "small.compilation.one": lambda: self._small(ipus=1).compilation_seconds,
            "small.compilation.two": lambda: self._small().compilation_seconds,
            "small.memory.data": self._small_data,
            "small.memory.fullest": lambda: self._small().memory.max_tile_bytes / KIBIBYTE,
        }

    def _blind(self) -> dict[str, Value]:
        """Return the rows that were scored blind."""
        found: dict[str, Value] = {name: partial(self._rate, built) for name, built in _RATES.items()}
        return found | {
            "blind.B1": lambda: self._profile(programs.mlperf_pod64_program).device_seconds_per_call,
            "blind.B2": lambda: self._profile(programs.mlperf_bow_pod64_program).device_seconds_per_call,
            "blind.B10": partial(self._large_product, 512, 4),
            "blind.B12": lambda: SEQUENCES_PER_PACK * self._rate(programs.bert_large_program),
        }

    def _rate(self, program: Built) -> float:
        """Return the samples per second of the device."""
        return self._profile(program).device_samples_per_second

    def _calls_per_second(self, image_seconds: float, loading: Loading = Loading.SYNC, **settings: int | bool) -> float:
        host = HostWork(image_seconds, self._hosts.day03_call_seconds, loading, source=FITTED)
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

    def _fullest_tile(self, dtype: torch.dtype) -> float:
        profile = self._profile(programs.day03_program, dtype=dtype, accumulation=3)
        return profile.memory.max_tile_bytes / KIBIBYTE

    def _small(self, ipus: int = 2) -> Profile:
        return self._profile(programs.small_resnet50_program, ipus=ipus)

    def _small_stage(self, index: int) -> StageTime:
        """Return what a stage of day 02's ResNet-50 takes for one micro-batch."""
        program = self._calibrated(programs.small_resnet50_program())
        return time_of(program, costs_of(program.step, program.settings), order_of(program)).stage_times[index]

    def _all_reduces(self, ipu: int) -> float:
        """Return the cycles of summing the gradients of all weights of one IPU over both replicas."""
        program = self._calibrated(programs.small_resnet50_program())
        ring, ipus = ring_of(program), variable_ipus(program.step)
        weights = (
            program.step.tensors[v.tensor] for v in program.step.variables if v.trainable and ipus[v.name] == ipu
        )
        return sum(ring.all_reduce(each.elements * each.dtype.bytes) for each in weights) * program.system.chip.clock_hz

    def _small_code(self, category: str) -> float:
        return mean_kibibytes(self._small().memory, category)

    def _small_data(self) -> float:
        """Return the MiB of data that the report counts as always live: accumulators are zeroed for each update."""
        data = (categories.VARIABLES, categories.OPTIMISER_STATE)
        return sum(total_bytes(self._small().memory, each) for each in data) / MEBIBYTE

    def _bert_large(self, replicas: int) -> Memory:
        return self._profile(programs.bert_large_program, replicas=replicas).memory

    def _bert_large_code(self, category: str) -> float:
        return mean_kibibytes(self._bert_large(1), category)

    def _growth(self, category: str) -> float:
        """Return the bytes of each of four replicas of BERT-Large against those of one alone."""
        return total_bytes(self._bert_large(4), category) / total_bytes(self._bert_large(1), category)

    def _large_product(self, columns: int, element_bytes: int) -> float:
        """Return TFLOP/s of 4096 x 4096 x `columns` on a whole Bow chip, with half partials in fp16."""
        device = Device(chip("Bow"), self._calibration)
        problem = matrix_product(4096, 4096, columns, element_bytes)
        work = contraction(problem, device, Precision(half_partials=element_bytes == 2))
        return work.flops / device.chip.seconds(device.total(work.cycles)) / 1e12

    def _profile(self, program: Callable[..., Program], host: HostWork = NO_HOST, **settings: Any) -> Profile:
        """Return the profile of what `program(**settings)` builds, each computed once."""
        if isinstance(program, partial):
            return self._profile(program.func, host, **program.keywords)
        return self._profiles(program, host, **settings)

    def _profiled(self, program: Callable[..., Program], host: HostWork = NO_HOST, **settings: object) -> Profile:
        return profile_program(self._calibrated(program(**settings)), host)

    def _calibrated(self, program: Program) -> Program:
        device = replace(program.settings.device, calibration=self._calibration)
        return replace(program, settings=replace(program.settings, device=device))


def on_tile_product(rows: int) -> float:
    """Return cycles of [rows, 16] x [16, 16] on one tile, fp16 with half partials."""
    one, unit = np.array([1.0]), MatrixUnit(element_bytes=2, partial_bytes=2, units=16, channel_group=16, workers=6)
    return float(conv_1x1(np.array([float(rows)]), one, one, one, unit)[0])


def mean_kibibytes(memory: Memory, category: str) -> float:
    """Return the KiB of one category on the average tile of one replica."""
    return total_bytes(memory, category) / sum(len(each.tiles) for each in memory) / KIBIBYTE


def total_bytes(memory: Memory, category: str) -> float:
    """Return the bytes of one category on all tiles of one replica."""
    return sum(each.total_bytes for ipu in memory for each in ipu.categories if each.name == category)
