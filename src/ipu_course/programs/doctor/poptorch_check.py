"""Which poptorch does `import poptorch` find: the IPU Model's, Graphcore's, or something in between?"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from ipu_course.programs.doctor.finding import Finding, ok, problem

GRAPHCORE = "poptorch"  # the name of Graphcore's distribution; the IPU Model's is called ipu-model
INSTALL = (
    "without IPUs: make setup. With the Poplar SDK: enable it, install its poptorch wheel, then "
    "pip install -r requirements-ipu.txt"
)


def check_poptorch() -> Finding:
    """The package that ``import poptorch`` finds from the current folder."""
    return judge_poptorch(_folder_of("poptorch"), _folder_of("ipu_model"), _graphcore_folder())


def judge_poptorch(found: Path | None, ipu_model: Path | None, graphcore: Path | None) -> Finding:
    """All three are package folders: what is imported, the engine, and where Graphcore's wheel put its poptorch."""
    if ipu_model is not None and graphcore is not None:
        return problem(
            f"two packages called poptorch: the IPU Model's beside {ipu_model}, Graphcore's in {graphcore}",
            "which one is imported is a matter of luck, and results would be taken for the other's",
            "keep one a virtual environment: pip uninstall ipu-model, or pip uninstall poptorch",
        )
    if found is None:
        return problem("no poptorch", "every lesson imports it", INSTALL)
    if ipu_model is not None and found == ipu_model.parent / "poptorch":
        return ok("the IPU Model's poptorch")
    if graphcore is not None and found == graphcore:
        return ok("Graphcore's poptorch")
    return problem(
        f"`import poptorch` finds {found}, which is neither the IPU Model's nor Graphcore's",
        "a file or folder of that name hides the package",
        f"rename or move {found}, or start from another folder",
    )


def _folder_of(package: str) -> Path | None:
    """The folder (of a lone module: the file) that an import would take; found without importing it."""
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return None if spec.origin is None else Path(spec.origin).resolve()


def _graphcore_folder() -> Path | None:
    try:
        files = distribution(GRAPHCORE)
    except PackageNotFoundError:
        return None
    return Path(str(files.locate_file("poptorch"))).resolve()
