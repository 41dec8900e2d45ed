"""Is this a Python that the course runs on, and are its packages here, in the versions that it was tried with?"""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Callable, Mapping, Sequence

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from ipu_course import engine
from ipu_course.programs.doctor.finding import Finding, notice, ok, problem

OLDEST_WITH_IPU_MODEL, NEWEST_WITH_IPU_MODEL = (3, 10), (3, 14)  # as tools/setup.sh; a test compares them
OLDEST_WITH_SDK = (3, 8)
SHOWN = 6
OURS = ("ipu-course", "ipu-model")
INSTALL = "make setup (in an environment of your own: pip install -r requirements.txt, standing in the course's folder)"
INSTALL_WITH_SDK = "pip install -r requirements-ipu.txt, standing in the course's folder, in the SDK's environment"


def check_python() -> Finding:
    """This Python's version."""
    return judge_python((sys.version_info[0], sys.version_info[1]), engine.is_available())


def judge_python(version: tuple[int, int], with_ipu_model: bool) -> Finding:
    """The IPU Model needs the Pythons that its torch is built for; a machine with the SDK has what the SDK asks for."""
    what = "Python {}.{} ({})".format(*version, platform.machine())
    if not with_ipu_model:
        if version >= OLDEST_WITH_SDK:
            return ok(f"{what}, without the IPU Model")
        supported = "3.8 or newer"
    elif OLDEST_WITH_IPU_MODEL <= version <= NEWEST_WITH_IPU_MODEL:
        return ok(what)
    else:
        supported = "{}.{} to {}.{}".format(*OLDEST_WITH_IPU_MODEL, *NEWEST_WITH_IPU_MODEL)
    return problem(
        what,
        f"the course is made for Python {supported}",
        "install such a Python and make the environment with it: make setup PYTHON=/path/to/python3",
    )


def check_packages() -> Finding:
    """The packages of requirements.txt; without the IPU Model, those that the course itself asks for."""
    needed = [each for name in OURS for each in _asked_by(name)]
    if not engine.is_available():
        return judge_packages(needed, [], installed_version, INSTALL_WITH_SDK)
    return judge_packages(needed, pins(_requirements_file()), installed_version, INSTALL)


def judge_packages(
    needed: Sequence[Requirement],
    pinned: Sequence[Requirement],
    version_of: Callable[[str], str | None],
    cure: str,
) -> Finding:
    """``needed``: what the lessons import, at versions that work; ``pinned``: the whole environment as it was tried."""
    unmet = [_described(each, version_of) for each in needed if not _is_met(each, version_of)]
    if unmet:
        return problem(f"missing or too old: {_some(unmet)}", "the lessons import them", cure)
    differing = [_described(each, version_of) for each in pinned if not _is_met(each, version_of)]
    if differing:
        return notice(
            f"not as pinned in requirements.txt: {_some(differing)}",
            "the lessons were tried with the pinned versions, and saved outputs may differ with others",
            cure,
        )
    if not pinned:
        return ok(f"all {len(needed)} packages that the course asks for are here")
    return ok(f"all {len(pinned)} pinned packages are here")


def check_torch_pair() -> Finding:
    """torch and torchvision: each torchvision is built for one torch."""
    asked = [each for each in requirements_of("torchvision") if each.name == "torch"]
    return judge_torch_pair(installed_version("torch"), installed_version("torchvision"), asked)


def judge_torch_pair(torch: str | None, torchvision: str | None, asked: Sequence[Requirement]) -> Finding:
    """``asked`` is what torchvision says about torch."""
    if torch is None or torchvision is None:
        absent = " and ".join(name for name, found in (("torch", torch), ("torchvision", torchvision)) if found is None)
        return problem(f"{absent} not installed", "every lesson needs torch, and most need torchvision", INSTALL)
    what = f"torch {torch}, torchvision {torchvision}"
    wrong = [str(each.specifier) for each in asked if not each.specifier.contains(torch, prereleases=True)]
    if wrong:
        return problem(
            f"{what}: this torchvision is built for torch {wrong[0]}",
            "importing torchvision fails, or its operators are missing",
            INSTALL,
        )
    return ok(what)


def pins(file: Path | None) -> list[Requirement]:
    """The pins that hold on this machine; none when there is no such file."""
    if file is None:
        return []
    found = []
    for line in file.read_text(encoding="utf-8").splitlines():
        text = line.split("#")[0].strip()
        if text and not text.startswith("-"):
            found.append(Requirement(text))
    return [each for each in found if each.marker is None or each.marker.evaluate()]


def installed_version(name: str) -> str | None:
    """The version of an installed distribution."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def requirements_of(name: str) -> list[Requirement]:
    """What an installed distribution asks for, whatever the environment; nothing when it is not installed."""
    try:
        return [Requirement(line) for line in requires(name) or ()]
    except (PackageNotFoundError, InvalidRequirement):
        return []


def _requirements_file() -> Path | None:
    file = Path(__file__).resolve().parents[4] / "requirements.txt"
    return file if file.is_file() else None


def _asked_by(name: str) -> list[Requirement]:
    """What one of our distributions needs to open and run lessons, on this machine."""
    extras: Sequence[Mapping[str, str]] = ({"extra": ""}, {"extra": "lab"})
    return [
        each
        for each in requirements_of(name)
        if each.marker is None or any(each.marker.evaluate(dict(extra)) for extra in extras)
    ]


def _is_met(requirement: Requirement, version_of: Callable[[str], str | None]) -> bool:
    found = version_of(requirement.name)
    return found is not None and requirement.specifier.contains(found, prereleases=True)


def _described(requirement: Requirement, version_of: Callable[[str], str | None]) -> str:
    found = version_of(requirement.name)
    name = canonicalize_name(requirement.name)
    return f"{name} {'is missing' if found is None else found} (wanted {requirement.specifier})"


def _some(texts: Sequence[str]) -> str:
    more = len(texts) - SHOWN
    return ", ".join(texts[:SHOWN]) + (f" and {more} more" if more > 0 else "")
