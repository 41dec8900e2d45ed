"""The environment: does the course run on this Python, are its packages here, and which poptorch is imported?"""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Callable, Iterable, Optional, Sequence

from packaging.requirements import InvalidRequirement, Requirement

from ipu_course.programs.doctor.finding import INSTALL, WITH_SDK, Finding, notice, ok, problem

OLDEST_WITH_IPU_MODEL, NEWEST_WITH_IPU_MODEL = (3, 10), (3, 14)  # as tools/setup.sh; a test compares them
OLDEST_WITH_SDK = (3, 8)
SHOWN = 6
OURS = ("ipu-course", "ipu-model")

FindVersion = Callable[[str], Optional[str]]


def judge_python(version: tuple[int, int], with_ipu_model: bool) -> Finding:
    """Judge a Python: the IPU Model needs one that its torch is built for, and the SDK brings its own."""
    what = "This is Python {}.{} ({}).".format(*version, platform.machine())
    if with_ipu_model:
        runs = OLDEST_WITH_IPU_MODEL <= version <= NEWEST_WITH_IPU_MODEL
        supported = "{}.{} to {}.{}".format(*OLDEST_WITH_IPU_MODEL, *NEWEST_WITH_IPU_MODEL)
    else:
        runs, supported = version >= OLDEST_WITH_SDK, "{}.{} or newer".format(*OLDEST_WITH_SDK)
    cure = "Install such a Python and make the environment with it: make setup PYTHON=/path/to/python3"
    return ok(what) if runs else problem(what, f"The course needs Python {supported}.", cure)


def installed_version(name: str) -> str | None:
    """Return the version of an installed distribution."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def requirements_of(name: str) -> list[Requirement]:
    """Return what an installed distribution asks for on any machine; nothing when it is not installed."""
    try:
        return [Requirement(line) for line in requires(name) or ()]
    except (PackageNotFoundError, InvalidRequirement):
        return []


def needed_packages() -> list[Requirement]:
    """Return what our distributions need to open and run lessons on this machine."""
    return [
        each
        for name in OURS
        for each in requirements_of(name)
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", "lab"))
    ]


def pinned_packages(file: Path) -> list[Requirement]:
    """Return the pins of a requirements file that hold on this machine; none when there is no such file."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    texts = (line.split("#")[0].strip() for line in lines)
    pins = [Requirement(text) for text in texts if text and not text.startswith("-")]
    return [pin for pin in pins if pin.marker is None or pin.marker.evaluate()]


def built_for(name: str, *others: str) -> list[Requirement]:
    """Return that a distribution is needed, and that ``others`` are, in the versions which it asks for."""
    asked = {each.name: each for each in requirements_of(name)}
    return [Requirement(name), *(asked.get(other, Requirement(other)) for other in others)]


def unmet(needed: Iterable[Requirement], version_of: FindVersion = installed_version) -> str:
    """Name the first requirements that are not met, and count the others; empty when all are met."""
    texts = []
    for each in needed:
        found = version_of(each.name)
        if found is None or not each.specifier.contains(found, prereleases=True):
            wanted = f" ({each.specifier} is needed)" if each.specifier else ""
            texts.append(f"{each.name} {'is missing' if found is None else found}{wanted}")
    more = len(texts) - SHOWN
    return ", ".join(texts[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def judge_packages(
    needed: Sequence[Requirement],
    pinned: Sequence[Requirement],
    version_of: FindVersion = installed_version,
    cure: str = INSTALL,
) -> Finding:
    """Judge what the lessons import (``needed``), and the environment as it was tested, where that is ``pinned``.

    Beside an IPU Model ``cure`` is to install what is missing, on an SDK machine it is to do so without the model.
    """
    missing, differing = unmet(needed, version_of), unmet(pinned, version_of)
    if missing:
        what = f"Some packages are missing or too old: {missing}."
        return problem(what, "The lessons import them.", cure)
    if differing:
        why = "The lessons were tested with the pinned versions; with others, outputs may differ from the saved ones."
        return notice(f"Some packages differ from the versions pinned in requirements.txt: {differing}.", why, INSTALL)
    if pinned:
        return ok(f"All {len(pinned)} pinned packages are installed.")
    return ok(f"All {len(needed)} packages that the course needs are installed.")


def judge_torch_pair(needed: Sequence[Requirement], version_of: FindVersion = installed_version) -> Finding:
    """Judge torch and torchvision: each torchvision is built for one torch, or needs one that is new enough."""
    wrong = unmet(needed, version_of)
    if wrong:
        why = "Every lesson needs torch, and most need a torchvision that was built for it."
        return problem(f"torch and torchvision are not compatible: {wrong}.", why, INSTALL)
    return ok(f"torch {version_of('torch')} and torchvision {version_of('torchvision')} are compatible.")


def folder_of(package: str) -> Path | None:
    """Return the folder (of a lone module: the file) that an import would take, without importing it."""
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return None
    places = [] if spec is None else [*(spec.submodule_search_locations or ()), spec.origin]
    return Path(places[0]).resolve() if places and places[0] else None


def folder_of_graphcores_poptorch() -> Path | None:
    """Return where Graphcore's wheel put its poptorch; the IPU Model's distribution has another name."""
    try:
        return Path(str(distribution("poptorch").locate_file("poptorch"))).resolve()
    except PackageNotFoundError:
        return None


def judge_poptorch(found: Path | None, ipu_model: Path | None, graphcore: Path | None) -> Finding:
    """Judge the folder that ``import poptorch`` takes by those of the engine and of Graphcore's poptorch."""
    if ipu_model is not None and graphcore is not None:
        return problem(
            f"There are two packages called poptorch: the IPU Model's beside {ipu_model}, Graphcore's in {graphcore}.",
            "An environment may have only one of them. With both, you cannot know which one is imported, and you could "
            "mistake modelled results for results from IPUs. The IPU Model therefore refuses to be imported.",
            "On a machine with IPUs, run `python -m pip uninstall ipu-model poptorch` and install Graphcore's wheel "
            "again. To use the IPU Model, install it into a virtual environment of its own (`python -m venv`).",
        )
    if found is None:
        cure = f"Without IPUs: {INSTALL} With the Poplar SDK, enable it and install its poptorch wheel. {WITH_SDK}"
        return problem("poptorch is not installed.", "Every lesson imports it.", cure)
    if ipu_model is not None and found == ipu_model.parent / "poptorch":
        return ok("`import poptorch` finds the IPU Model's poptorch.")
    if graphcore is not None and found == graphcore:
        return ok("`import poptorch` finds Graphcore's poptorch.")
    return problem(
        f"`import poptorch` finds {found}, which is neither the IPU Model's nor Graphcore's.",
        "A file or folder of that name hides the package.",
        f"Rename or move {found}, or start from another folder.",
    )
