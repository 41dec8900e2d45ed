"""What the model says about each published row, computed when asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from operator import attrgetter
from pathlib import Path

import numpy as np
import torch

from ipu_model.errors import Error
from ipu_model.predict import profile_program
from ipu_model.predict.calibration import Calibration, calibrated
from ipu_model.predict.device import Device
from ipu_model.predict.hardware import chip
from ipu_model.predict.host import HostWork, Loading
from ipu_model.predict.links import ring_of
from ipu_model.predict.ops.updates import variable_ipus
from ipu_model.predict.planner import contraction, matrix_product
from ipu_model.predict.profile import CODE, OPTIMISER_STATE, VARIABLES, Memory, PhaseCycles, Profile
from ipu_model.predict.program import Program
from ipu_model.predict.vertices import MatrixUnit, conv_1x1
from ipu_model.predict.work import StageWork, workload_of
from published import convolutional, transformers
from published.building import FLOAT, HALF
from published.rows import Argument, Row, VerdictRow

KIBIBYTE, MEBIBYTE = 1024, 1024**2
FITTED = "fitted on the published program"
Value = Callable[[], float]
Build = Callable[[], Program]

_PHASES = tuple(phase.name for phase in fields(PhaseCycles))

# The category of memory of each row about code, by the end of its id.
_CODE = {category.removeprefix("internal ").replace(" ", "_"): category for category in CODE}

_DTYPES: Mapping[Argument, torch.dtype] = {"float16": HALF, "float32": FLOAT}


def build_of(row: Row | VerdictRow, **changed: Argument) -> Build:
    """Return what builds a row's program, with some arguments `changed`."""
    module = convolutional if hasattr(convolutional, row.program) else transformers
    arguments = {name: _DTYPES.get(value, value) for name, value in {**row.arguments, **changed}.items()}
    return partial(getattr(module, row.program), **arguments)


class Predictions:
    """The modelled value of each published row, by the row's id, with constants that may be other than the data's.

    Profiles are shared by the rows that need them, so an object is worth keeping for one pass over the rows.
    """

    def __init__(self, calibration: Calibration | None = None) -> None:
        self._calibration = calibration or calibrated()
        self._profiles: dict[object, Profile] = {}
        self._by_id = self._table()

    def __contains__(self, row: Row) -> bool:
        return bool(row.program) or row.id in self._by_id

    def value(self, row: Row, **changed: Argument) -> float:
        """Return the modelled value, with arguments `changed`; raise ``Error`` for a row without program or line."""
        if row not in self:
            raise Error(f"Nothing says how to model the row {row.id}: name its program, or see {Path(__file__).name}.")
        if row.id in self._by_id:
            return self._by_id[row.id]()
        return float(row.times * attrgetter(row.read)(self._profile(build_of(row, **changed))))

    def memory(self, row: VerdictRow) -> Memory:
        return self._profile(build_of(row)).memory

    def _table(self) -> Mapping[str, Value]:
        table: dict[str, Value] = {f"amp.{n}": partial(on_tile_product, n) for n in (16, 64, 256, 1024)}
        for end, category in _CODE.items():
            table[f"guide.code.{end}"] = partial(self._growth, category)
            table[f"guide.code.one.{end}"] = partial(self._mean_kibibytes, partial(self._bert_large, 1), category)
            table[f"small.memory.{end}"] = partial(self._mean_kibibytes, self._small, category)
        return table | self._traces() | self._day03_calls() | self._day02() | self._other_programs()

    def _other_programs(self) -> dict[str, Value]:
        return {
            "blind.B10": partial(self._large_product, 512, 4),
            "gemm": partial(self._large_product, 1024, 2),
            "mnist.calls": lambda: 1.0 / self._mnist().call_seconds,
            "mnist.update": self._mnist_update,
        }

    # --- the workshop's ResNet-101

    def _traces(self) -> dict[str, Value]:
        """The phases of both traces, what one further micro-batch takes, and a call without micro-batches."""

        def cycles(accumulation: int, ipu: int = 0) -> PhaseCycles:
            return self._profile(partial(convolutional.day03_program, accumulation=accumulation)).cycles[ipu]

        def phase(name: str, accumulation: int) -> float:
            return float(getattr(cycles(accumulation), name))

        def share(accumulation: int) -> float:
            return 100 * cycles(accumulation).on_tile_execute / cycles(accumulation).total

        def further(name: str) -> float:
            return (phase(name, 8) - phase(name, 3)) / 5

        table: dict[str, Value] = {f"day03.micro_batch.{name}": partial(further, name) for name in _PHASES}
        for accumulation in (3, 8):
            prefix = f"day03.trace.ga{accumulation}"
            table |= {f"{prefix}.{name}": partial(phase, name, accumulation) for name in (*_PHASES, "total")}
            table[f"day03.share.ga{accumulation}"] = partial(share, accumulation)
        table["day03.update.on_tile_execute"] = lambda: phase("on_tile_execute", 3) - 3 * further("on_tile_execute")
        table["day03.ipu1"] = lambda: cycles(8, ipu=1).on_tile_execute / cycles(8).on_tile_execute
        return table

    def _day03_calls(self) -> dict[str, Value]:
        """Calls per second with the workshop's loaders, and what else is published of its program."""
        rates = self._calibration.published_host
        day03 = convolutional.day03_program

        def calls(seconds: float, program: Build, loading: Loading = Loading.SYNC) -> float:
            host = HostWork(seconds, rates.day03_call_seconds, loading, source=FITTED)
            return 1.0 / self._profile(program, host).call_seconds

        converting, bytewise = rates.day03_converted_image_seconds, rates.day03_byte_image_seconds
        eight_bit = partial(day03, iterations=4, eight_bit=True)
        return {
            "day03.calls.ga3": partial(calls, converting, partial(day03, accumulation=3)),
            "day03.calls.ga8": partial(calls, converting, partial(day03, accumulation=8)),
            "day03.calls.di4": partial(calls, converting, partial(day03, iterations=4)),
            "day03.calls.byte": partial(calls, bytewise, eight_bit),
            "day03.calls.async": partial(calls, bytewise, eight_bit, Loading.ASYNC),
        }

    # --- day 02's ResNet-50

    def _day02(self) -> dict[str, Value]:
        return {
            "small.forward": lambda: self._small_stage(0).forward.total,
            "small.backward": lambda: self._small_stage(0).backward.total + self._small_stage(0).recompute.total,
            "small.last": lambda: self._small_stage(1).total,
            "small.all_reduce.first": partial(self._all_reduces, 0),
            "small.all_reduce.second": partial(self._all_reduces, 1),
            # Data that the report counts as always live: accumulators are zeroed for each update.
            "small.memory.data": lambda: total_bytes(self._small(), VARIABLES, OPTIMISER_STATE) / MEBIBYTE,
        }

    def _small(self, ipus: int = 2) -> Profile:
        return self._profile(partial(convolutional.small_resnet50_program, ipus=ipus))

    def _small_stage(self, index: int) -> StageWork:
        program = self._calibrated(convolutional.small_resnet50_program())
        return workload_of(program).stages[index]

    def _all_reduces(self, ipu: int) -> float:
        """The cycles of summing the gradients of all weights of one IPU over both replicas."""
        program = self._calibrated(convolutional.small_resnet50_program())
        step, ring, ipus = program.step, ring_of(program), variable_ipus(program.step)
        weights = (step.tensors[v.tensor] for v in step.variables if v.trainable and ipus[v.name] == ipu)
        seconds = sum(ring.all_reduce(weight.elements * weight.dtype.bytes) for weight in weights)
        return seconds * program.system.chip.clock_hz

    # --- other programs

    def _mnist(self) -> Profile:
        seconds = self._calibration.published_host.mnist_image_seconds
        host = HostWork(seconds, loading=Loading.ASYNC, source=FITTED)
        return self._profile(convolutional.digits_program, host)

    def _mnist_update(self) -> float:
        profile = self._mnist()
        cycles = profile.device_seconds_per_call * profile.machine.clock_hz
        updates = convolutional.digits_program().batching.device_iterations
        return cycles * (1 - profile.shares["run start"]) / updates

    def _bert_large(self, replicas: int) -> Profile:
        return self._profile(partial(transformers.bert_large_program, replicas=replicas))

    def _growth(self, category: str) -> float:
        """The bytes of each of four replicas of BERT-Large against those of one alone."""
        return total_bytes(self._bert_large(4), category) / total_bytes(self._bert_large(1), category)

    def _mean_kibibytes(self, build: Callable[[], Profile], category: str) -> float:
        """The KiB of one category on the average tile of one replica."""
        profile = build()
        return total_bytes(profile, category) / sum(len(ipu.tiles) for ipu in profile.memory) / KIBIBYTE

    def _large_product(self, columns: int, element_bytes: int) -> float:
        """TFLOP/s of 4096 x 4096 x `columns` on a whole Bow chip, with half partials in fp16."""
        device = Device(chip("Bow"), self._calibration)
        problem = matrix_product(4096, 4096, columns, element_bytes)
        work = contraction(problem, device, element_bytes == 2)
        return work.flops / device.chip.seconds(device.total(work.cycles)) / 1e12

    def _profile(self, build: Build, host: HostWork | None = None) -> Profile:
        """The profile of what `build` returns, computed once for each function with the same arguments."""
        called = (build.func, build.args, *sorted(build.keywords.items())) if isinstance(build, partial) else build
        if (called, host) not in self._profiles:
            program = self._calibrated(build())
            self._profiles[called, host] = profile_program(program, host or HostWork())
        return self._profiles[called, host]

    def _calibrated(self, program: Program) -> Program:
        device = replace(program.settings.device, calibration=self._calibration)
        return replace(program, settings=replace(program.settings, device=device))


def on_tile_product(rows: int) -> float:
    """Return cycles of [rows, 16] x [16, 16] on one tile, fp16 with half partials."""
    one, unit = np.array([1.0]), MatrixUnit(element_bytes=2, partial_bytes=2, units=16, channel_group=16, workers=6)
    return float(conv_1x1(np.array([float(rows)]), one, one, one, unit)[0])


def total_bytes(profile: Profile, *categories: str) -> float:
    return sum(entry.total_bytes for ipu in profile.memory for entry in ipu.categories if entry.name in categories)
