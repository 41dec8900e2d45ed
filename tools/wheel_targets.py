"""Which machine a wheelhouse is for: its wheel tags, and the environment that markers are evaluated in."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from packaging import tags
from packaging.markers import default_environment
from packaging.requirements import Requirement
from setup_errors import SetupError

OLDEST, NEWEST = 10, 14  # of Python 3; tools/setup.sh says why


@dataclass(frozen=True)
class Platform:
    """A kind of machine: the platform tags its wheels may have, newest first, and its markers' values."""

    tags: tuple[str, ...]
    markers: dict[str, str]


def _linux(machine: str) -> Platform:
    # glibc 2.28 (2018) is what the pinned torch is built for; older tags run there, too.
    versions = (*(f"manylinux_2_{minor}" for minor in range(28, 4, -1)), "manylinux2014", "manylinux2010", "manylinux1")
    markers = {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": machine, "os_name": "posix"}
    return Platform(tuple(f"{version}_{machine}" for version in versions), markers)


def _mac(machine: str) -> Platform:
    markers = {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": machine, "os_name": "posix"}
    return Platform(tuple(tags.mac_platforms((14, 0), machine)), markers)


PLATFORMS = {
    "linux-x86_64": _linux("x86_64"),
    "linux-aarch64": _linux("aarch64"),
    "macos-arm64": _mac("arm64"),
}


@dataclass(frozen=True)
class Target:
    """The machine and Python that a wheelhouse is for; `cross` says that it may be another one than here."""

    name: str
    python: tuple[int, int]
    platforms: tuple[str, ...]
    markers: dict[str, str]
    cross: bool

    def pip_options(self) -> list[str]:
        """Return the options that make pip choose wheels for this target."""
        if not self.cross:
            return []
        version = ["--python-version", "{}.{}".format(*self.python), "--implementation", "cp"]
        return [*version, *(f"--platform={name}" for name in self.platforms)]

    def wheel_tags(self) -> frozenset[tags.Tag]:
        """Return the tags of the wheels that can be installed there."""
        if not self.cross:
            return frozenset(tags.sys_tags())
        interpreter = "cp{}{}".format(*self.python)
        compiled = tags.cpython_tags(self.python, platforms=self.platforms)
        plain = tags.compatible_tags(self.python, interpreter, self.platforms)
        return frozenset(compiled) | frozenset(plain)

    def applies(self, requirement: Requirement, extras: Sequence[str] = ()) -> bool:
        """Tell whether a requirement holds there, for one of the `extras` that were asked for."""
        if requirement.marker is None:
            return True
        return any(requirement.marker.evaluate({**self.markers, "extra": extra}) for extra in (*extras, ""))


def target_of(platform: str | None, python_version: str | None) -> Target:
    """Return the target that the two options name; this machine and this Python where they name none."""
    here = sys.version_info[:2]
    python = here if python_version is None else _python(python_version)
    markers = {key: str(value) for key, value in default_environment().items()}
    cross = platform is not None or python != here
    if python != here:
        version = "{}.{}".format(*python)
        # The bug-fix release is not known; 3.12.99 stands for "the newest", as markers ask for "older than".
        markers.update(python_version=version, python_full_version=f"{version}.99", implementation_version=version)
    if platform is not None:
        markers.update(PLATFORMS[platform].markers)
        platforms = PLATFORMS[platform].tags
    else:
        platforms = tuple(tags.platform_tags())
    name = "Python {}.{} on {}".format(*python, platform or "this kind of machine")
    return Target(name, python, platforms, markers, cross)


def _python(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"3\.(\d+)", text)
    if match is None or not OLDEST <= int(match[1]) <= NEWEST:
        raise SetupError(f"PYTHON_VERSION={text}: the course needs 3.{OLDEST} to 3.{NEWEST}, written like 3.12")
    return 3, int(match[1])
