"""What wheels ask for: follows requirements through the metadata of the wheels in a folder."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version
from setup_errors import SetupError
from wheel_targets import Target


@dataclass(frozen=True)
class Wheel:
    """A wheel file: its project's normalised name and its version."""

    name: str
    version: Version
    path: Path


def wheels_in(folder: Path, target: Target) -> list[Wheel]:
    """Return the wheels of a folder that can be installed on the target, newest version first."""
    wanted = target.wheel_tags()
    found = []
    for path in folder.glob("*.whl"):
        name, version, _, tags = parse_wheel_filename(path.name)
        if tags & wanted:
            found.append(Wheel(name, version, path))
    return sorted(found, key=lambda wheel: (wheel.name, wheel.version), reverse=True)


def requirements_of(wheel: Wheel) -> list[Requirement]:
    """Return what a wheel asks for, whatever the environment."""
    try:
        with zipfile.ZipFile(wheel.path) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            metadata = Parser().parsestr(archive.read(name).decode("utf-8"))
    except (zipfile.BadZipFile, StopIteration, OSError) as problem:
        raise SetupError(f"{wheel.path} is damaged: remove it and run this again") from problem
    return [Requirement(str(line)) for line in metadata.get_all("Requires-Dist", [])]


def missing(roots: Iterable[Requirement], wheels: Iterable[Wheel], target: Target) -> list[Requirement]:
    """Return the requirements that no wheel at hand meets, following the metadata of those that are met.

    `roots` are requirements that hold on the target. Each project stands once in the result, with all that is asked
    of its version.
    """
    by_name: dict[str, list[Wheel]] = {}
    for wheel in wheels:
        by_name.setdefault(wheel.name, []).append(wheel)
    waiting, seen = list(roots), set()
    lacking: dict[str, Requirement] = {}
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        fitting = [each for each in by_name.get(name, ()) if requirement.specifier.contains(each.version, True)]
        if not fitting:
            known = lacking.setdefault(name, Requirement(str(requirement)))
            known.specifier &= requirement.specifier  # one download that suits everyone who asks
            continue
        for extra in ("", *sorted(requirement.extras)):
            if (name, extra) not in seen:
                seen.add((name, extra))
                asked = requirements_of(fitting[0])
                waiting += [each for each in asked if target.applies(each, [extra])]
    return list(lacking.values())
