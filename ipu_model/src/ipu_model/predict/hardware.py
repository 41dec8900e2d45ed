"""The machines that programs are modelled on, chips and `System`s of them, from `data/machines.toml`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from ipu_model.errors import Error
from ipu_model.predict.calibration import Fact, fact, read_data


@dataclass(frozen=True)
class _Described:
    """What chips and systems have in common: a name, a title and numbers, all of which must be possible."""

    name: str
    title: str

    def __post_init__(self) -> None:
        where = f"{type(self).__name__.lower()} {self.name!r}"
        for name, kind in _numbers(type(self)).items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise Error(f"{where} cannot have {name} = {value!r}: it must be a finite number.")
            if kind == "int" and int(value) != value:
                raise Error(f"{where} cannot have {name} = {value!r}: it must be a whole number.")
            if value < 0 or (value == 0 and name not in _MAY_BE_ZERO):
                least = "not be negative" if name in _MAY_BE_ZERO else "be above 0"
                raise Error(f"{where} cannot have {name} = {value}: it must {least}.")


_MAY_BE_ZERO = {"link_hop_seconds", "gateway_link_bytes_per_second", "streaming_bytes", "streaming_bytes_per_second"}


def _numbers(kind: type[_Described]) -> dict[str, str]:
    return {f.name: str(f.type) for f in fields(kind) if f.type in ("int", "float")}  # annotations are strings here


@dataclass(frozen=True)
class Chip(_Described):
    """One IPU. Sizes in bytes, the clock in Hz, rates per cycle and tile."""

    tiles: int
    tile_bytes: int
    clock_hz: float
    workers: int
    data_path_bytes: int
    exchange_bytes_per_cycle: float
    tiles_per_exchange_bus: int
    max_sync_cycles: int
    global_sync_cycles: int
    half_units_half_partials: int
    half_units_float_partials: int
    float_units: int
    half_channel_group: int
    float_channel_group: int

    def seconds(self, cycles: float) -> float:
        return cycles / self.clock_hz

    def vector_width(self, element_bytes: int) -> int:
        """Return how many elements of this size the data path carries in a cycle (at least one)."""
        return max(1, self.data_path_bytes // element_bytes)

    def peak_flops(self, element_bytes: int, *, half_partials: bool = False) -> float:
        """Return the matrix units' FLOP/s for fp16 (2 bytes) or fp32 (4 bytes) operands."""
        units, group, cycles = self.matrix_unit(element_bytes, half_partials=half_partials)
        return 2.0 * units * group / cycles * self.tiles * self.clock_hz

    def matrix_unit(self, element_bytes: int, *, half_partials: bool) -> tuple[int, int, int]:
        """Return the units, the input channels of one pass, and the thread cycles of one pass per field element."""
        if element_bytes >= 4:
            return self.float_units, self.float_channel_group, 8
        units = self.half_units_half_partials if half_partials else self.half_units_float_partials
        return units, self.half_channel_group, 4


@dataclass(frozen=True)
class System(_Described):
    """IPUs of one kind, in machines whose IPUs share host links and streaming memory; rates count one direction."""

    chip: Chip
    ipus: int
    ipus_per_machine: int
    link_bytes_per_second: float
    link_hop_seconds: float
    gateway_link_bytes_per_second: float
    host_to_device_bytes_per_second: float
    device_to_host_bytes_per_second: float
    streaming_bytes: float
    streaming_bytes_per_second: float


@dataclass(frozen=True)
class Catalogue:
    chips: Mapping[str, Chip]
    systems: Mapping[str, System]
    aliases: Mapping[str, str]
    offline_versions: Mapping[int, str]
    facts: Mapping[str, Mapping[str, Fact]]


def system_named(name: str) -> System:
    """Return the system called `name`, in any spelling; a chip's name stands for its smallest system."""
    catalogue = known_hardware()
    key = _plain(name)
    if key in catalogue.aliases:
        return catalogue.systems[catalogue.aliases[key]]
    raise Error(
        f"There is no machine {name!r}. Systems: {', '.join(catalogue.systems)}; chips: {', '.join(catalogue.chips)}."
    )


def chip(name: str) -> Chip:
    return system_named(name).chip


def system_with(chip_name: str, ipus: int) -> System:
    """Return the smallest system of that chip with at least `ipus` IPUs. Raises `Error` if none is that large."""
    wanted = chip(chip_name)
    systems = [s for s in known_hardware().systems.values() if s.chip == wanted]
    fitting = [s for s in systems if s.ipus >= ipus]
    if ipus < 1:
        raise Error(f"A program needs at least one IPU, but {ipus} were requested.")
    if not fitting:
        largest = max(systems, key=lambda s: s.ipus)
        raise Error(
            f"No system has {ipus} IPUs of the kind {wanted.name}: the largest is {largest.name} with "
            f"{largest.ipus}. Use fewer replicas, or fewer IPUs a replica."
        )
    return min(fitting, key=lambda s: s.ipus)


def is_chip(name: str) -> bool:
    return _plain(name) in map(_plain, known_hardware().chips)


def system_with_room(wanted: str | System, ipus: int, said_by: str) -> System:
    """Return the machine `wanted`, which `said_by` names, or a chip's smallest system with at least `ipus` IPUs."""
    if not isinstance(wanted, (str, System)):
        raise Error(
            "A machine is named by a text such as 'POD16' or 'Bow', or it is an ipu_model.predict.hardware.System; got "
            f"{wanted!r}."
        )
    if isinstance(wanted, str) and is_chip(wanted):
        return system_with(wanted, ipus)
    system = wanted if isinstance(wanted, System) else system_named(wanted)
    if system.ipus < ipus:
        raise Error(
            f"The program needs {ipus} IPUs, but {system.name}, which {said_by} names, has {system.ipus}. The nearest "
            f"machine that fits is {system_with(system.chip.name, ipus).name}; fewer replicas or fewer IPUs "
            "for each replica fit, too."
        )
    return system


def chip_of_offline_target(version: int) -> Chip:
    """Return the chip that `useOfflineIpuTarget(version)` stands for: 1 GC2, 2 GC200, 21 C600."""
    versions = known_hardware().offline_versions
    if version not in versions:
        known = ", ".join(f"{number} ({name})" for number, name in sorted(versions.items()))
        raise Error(f"There is no IPU version {version!r} to compile for offline. Versions: {known}.")
    return known_hardware().chips[versions[version]]


def provenance(name: str) -> Mapping[str, Fact]:
    facts = known_hardware().facts
    return facts.get(_plain(name)) or facts[_plain(system_named(name).name)]


@lru_cache(maxsize=1)
def known_hardware() -> Catalogue:
    return catalogue_of(read_data("machines.toml"), "machines.toml")


def catalogue_of(data: Mapping[str, Any], where: str) -> Catalogue:
    chip_tables, system_tables = data.get("chips", {}), data.get("systems", {})
    facts: dict[str, dict[str, Fact]] = {}

    def values_of(table: Mapping[str, Any], name: str, names: Iterable[str], place: str) -> dict[str, Any]:
        missing = [number for number in names if number not in table]
        if missing:
            raise Error(f"{place} has no {', '.join(missing)}.")
        own = facts[_plain(name)] = {number: fact(table[number], f"{place}, {number}") for number in names}
        return {number: entry.value for number, entry in own.items()}

    chips: dict[str, Chip] = {}
    for name in chip_tables:
        table = _inherited(chip_tables, name, where)
        numbers = values_of(table, name, _numbers(Chip), f"{where}: chip {name}")
        chips[name] = Chip(name=name, title=str(table.get("title", name)), **numbers)
    systems: dict[str, System] = {}
    aliases: dict[str, str] = {}
    for name in system_tables:
        table = _inherited(system_tables, name, where)
        if table.get("chip") not in chips:
            raise Error(f"{where}: system {name} has chip {table.get('chip')!r}; there are {', '.join(chips)}.")
        numbers = values_of(table, name, _numbers(System), f"{where}: system {name}")
        systems[name] = System(name, str(table.get("title", name)), chips[table["chip"]], **numbers)
        aliases |= {_plain(alias): name for alias in (*system_tables[name].get("aliases", ()), name)}
    for name in chips:
        carriers = [system for system in systems.values() if system.chip.name == name]
        if carriers:
            aliases[_plain(name)] = min(carriers, key=lambda system: system.ipus).name
    versions = {int(t["offline_version"]): name for name, t in chip_tables.items() if "offline_version" in t}
    return Catalogue(chips, systems, aliases, versions, facts)


def _inherited(tables: Mapping[str, Any], name: str, where: str, seen: tuple[str, ...] = ()) -> dict[str, Any]:
    if name not in tables:
        raise Error(f"{where}: {seen[-1]} is like {name!r}, which is not described.")
    if name in seen:
        raise Error(f"{where}: {' is like '.join((*seen, name))}, which never ends.")
    own = dict(tables[name])
    parent = own.pop("like", None)
    inherited = _inherited(tables, parent, where, (*seen, name)) if parent is not None else {}
    return {**inherited, **own}


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())
