"""Which machine a program is modelled on."""

from __future__ import annotations

import os

from ipu_model.predict import hardware
from ipu_model.predict.hardware import Chip, System
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
        return hardware.system_with_room(wanted, ipus, "the argument machine")
    version = _version(options)
    named = os.environ.get(VARIABLE)
    if named and (version is None or _version_of(hardware.chip(named)) == version):
        return hardware.system_with_room(named, ipus, f"the environment variable {VARIABLE}")
    chip = _DEFAULT_CHIP if version is None else hardware.chip_of_offline_target(version).name
    return hardware.system_with(chip, ipus)


def _version(options: Options) -> int | None:
    if options.exists("ipu_version"):
        return int(options.ipu_version)
    return _VERSIONS.get(os.environ.get("POPTORCH_IPU_MODEL_VERSION", ""))


def _version_of(chip: Chip) -> int:
    by_name = {name: version for version, name in hardware.known_hardware().offline_versions.items()}
    return by_name.get(chip.name, _MK2)
