"""The constants that no document gives, explained in `data/calibration.toml`; `with_values` tries other numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from importlib.resources import files
from typing import Any, get_type_hints

import msgspec

from ipu_model.errors import Error

_FILE = "calibration.toml"


class Fact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One number of a data file: its value and unit, its source, and how sure it is."""

    value: int | float
    unit: str
    source: str
    confidence: str


def read_text(name: str) -> str:
    return (files("ipu_model") / "data" / name).read_text(encoding="utf-8")


def read_data(name: str) -> dict[str, Any]:
    return parse(read_text(name), name)


def parse(text: str, name: str) -> dict[str, Any]:
    try:
        return msgspec.toml.decode(text, type=dict[str, Any])
    except (ValueError, RecursionError) as error:  # the syntax, a number of thousands of digits, or endless nesting
        raise Error(f"{name} is not valid TOML: {error}.") from error


def fact(entry: object, where: str) -> Fact:
    """Check one entry `{ value, unit, source, confidence }`; `where` is what an error calls it."""
    try:
        return msgspec.convert(entry, Fact)
    except msgspec.ValidationError as problem:
        parts = ", ".join(Fact.__struct_fields__)
        raise Error(f"{where} must be a table with {parts}: {problem}.") from problem


@dataclass(frozen=True)
class Section:
    """The base of the sections of the file, which says what their entries are."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not math.isfinite(value) or value < 0:
                raise Error(f"The constant {item.name} cannot be {value!r}: it must be finite and not negative.")


@dataclass(frozen=True)
class CostConstants(Section):
    sync_cycles: float
    exchange_fixed_cycles: float
    exchange_piece_cycles: float
    layout_copy_cycles_per_byte: float
    layout_copy_fixed_cycles: float
    two_byte_copy_cycles_per_byte: float
    four_byte_copy_cycles_per_byte: float
    element_copy_fixed_cycles: float
    weight_transpose_cycles_per_element: float
    least_bytes_per_tile: float
    pool_row_factor: float
    norm_channel_ops: float
    optimiser_fixed_cycles: float
    random_fixed_cycles: float
    gather_fixed_cycles: float
    gather_second_stage_cycles: float
    update_scan_cycles: float


@dataclass(frozen=True)
class HostConstants(Section):
    call_seconds: float


@dataclass(frozen=True)
class CompilationConstants(Section):
    seconds_per_ipu: float
    seconds_per_layer: float
    inference_share: float


@dataclass(frozen=True)
class BandConstants(Section):
    """The error band of programs that no published row resembles, and the limits that sort programs into families."""

    without_rows_low: float
    without_rows_high: float
    large_work_cycles_per_phase: float
    small_share: float
    narrow: float


@dataclass(frozen=True)
class PublishedHostConstants(Section):
    day03_converted_image_seconds: float
    day03_byte_image_seconds: float
    day03_call_seconds: float
    mnist_image_seconds: float


@dataclass(frozen=True)
class PipelineConstants(Section):
    stage_pass_cycles: float
    copy_link_share: float


@dataclass(frozen=True)
class StreamConstants(Section):
    ipu_bytes_per_second: float
    refill_bytes_per_second: float
    completion_bytes_per_second: float
    run_wait_seconds: float


@dataclass(frozen=True)
class CollectiveConstants(Section):
    link_share: float
    call_seconds: float
    link_domain_ipus: float


@dataclass(frozen=True)
class MemoryConstants(Section):
    exchange_code_bytes_per_phase: float
    exchange_code_bytes_per_copy: float
    control_code_bytes_per_call: float
    vertex_state_bytes_per_compute_set: float
    vertex_code_bytes_per_kind: float
    host_exchange_bytes_per_tensor: float
    global_exchange_bytes_per_transfer: float
    global_exchange_bytes_per_replica: float
    collective_exchange_bytes: float
    collective_control_bytes: float
    reserved_bytes: float
    least_weight_bytes_per_tile: float
    close_low: float
    close_high: float


@dataclass(frozen=True)
class Calibration:
    """All sections of `data/calibration.toml`; each field is named like its section."""

    cost: CostConstants
    host: HostConstants
    compilation: CompilationConstants
    band: BandConstants
    published_host: PublishedHostConstants
    pipeline: PipelineConstants
    stream: StreamConstants
    collective: CollectiveConstants
    memory: MemoryConstants

    def with_values(self, values: Mapping[str, float]) -> Calibration:
        """Return a calibration in which some numbers, named "section.name", are replaced."""
        facts = constant_facts()
        unknown = sorted(set(values) - {f"{section}.{name}" for section in facts for name in facts[section]})
        if unknown:
            raise Error(f"There is no constant {', '.join(unknown)} in {_FILE}.")
        changed = self
        for key, value in values.items():
            section, name = key.split(".")
            constants = replace(getattr(changed, section), **{name: value})
            changed = replace(changed, **{section: constants})
        return changed


@lru_cache(maxsize=1)
def constant_facts() -> Mapping[str, Mapping[str, Fact]]:
    """Return every constant by section and name, with unit, source and confidence."""
    return {
        section: {name: fact(entry, f"{_FILE}, {section}.{name}") for name, entry in entries.items()}
        for section, entries in read_data(_FILE).items()
    }


@lru_cache(maxsize=1)
def calibrated() -> Calibration:
    values = {
        section: {name: number.value for name, number in facts.items()} for section, facts in constant_facts().items()
    }
    return Calibration(**{section: kind(**values[section]) for section, kind in get_type_hints(Calibration).items()})
