"""Which machine a program is modelled on."""

from __future__ import annotations

import os

from ipu_model import hardware
from ipu_model.errors import Error
from ipu_model.hardware import Chip, System
from poptorch.options import Options

VARIABLE = "IPU_MODEL_MACHINE"
_DEFAULT_CHIP = "GC200"

# What POPTORCH_IPU_MODEL_VERSION says, as the numbers that useOfflineIpuTarget takes.
_VERSIONS = {"ipu1": 1, "ipu2": 2, "ipu21": 21}
# Chips that are no version of their own answer to this one: to PopTorch a Bow IPU is a Mk2 IPU.
_MK2 = 2


def machine_for(options: Options, ipus: int, wanted: str | System | None = None) -> System:
    """Return the machine for a program that occupies `ipus` IPUs.

    `wanted` wins; then the chip that `useOfflineIpuTarget` or else `POPTORCH_IPU_MODEL_VERSION` names, and the
    machine that the variable `IPU_MODEL_MACHINE` names, if it is of that chip; else the smallest system of that
    chip, or of GC200, with enough IPUs. A chip's name stands for its smallest system with enough IPUs.

    Raises:
        Error: no such machine, or it has fewer IPUs.
    """
    if wanted is not None:
        return _fitting(wanted, ipus, "the argument machine")
    version = _version(options)
    named = os.environ.get(VARIABLE)
    if named and (version is None or _version_of(hardware.chip(named)) == version):
        return _fitting(named, ipus, f"the environment variable {VARIABLE}")
    chip = _DEFAULT_CHIP if version is None else hardware.chip_of_offline_target(version).name
    return hardware.system_with(chip, ipus)


def _version(options: Options) -> int | None:
    if options.exists("ipu_version"):
        return int(options.ipu_version)
    return _VERSIONS.get(os.environ.get("POPTORCH_IPU_MODEL_VERSION", ""))


def _version_of(chip: Chip) -> int:
    by_name = {name: version for version, name in hardware.known_machines().offline_versions.items()}
    return by_name.get(chip.name, _MK2)


def _fitting(wanted: str | System, ipus: int, said_by: str) -> System:
    if not isinstance(wanted, (str, System)):
        raise Error(
            "A machine is named by a text such as 'POD16' or 'Bow', or it is an ipu_model.hardware.System; got "
            f"{wanted!r}."
        )
    if isinstance(wanted, str) and _is_chip(wanted):
        return hardware.system_with(wanted, ipus)
    system = wanted if isinstance(wanted, System) else hardware.machine(wanted)
    if system.ipus < ipus:
        raise Error(
            f"The program needs {ipus} IPUs, but {system.name}, which {said_by} names, has {system.ipus}. The nearest "
            f"machine that fits is {hardware.system_with(system.chip.name, ipus).name}; fewer replicas or fewer IPUs "
            "for each replica fit, too."
        )
    return system


def _is_chip(name: str) -> bool:
    return _plain(name) in map(_plain, hardware.known_machines().chips)


def _plain(name: str) -> str:
    """Return a name as `hardware.machine` compares it: capitals, spaces and hyphens do not matter."""
    return "".join(c for c in name.lower() if c.isalnum())
