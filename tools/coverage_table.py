"""Print what `make coverage` measured, by package; exit with 1 where one of them is below the floor.

The floor is `fail_under` in pyproject.toml, in per cent of the lines.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coverage

ROOT = Path(__file__).resolve().parents[1]
SOURCES = "ipu_model/src"
MOST_FILES = 40


@dataclass(frozen=True)
class Share:
    """How many lines and branches there are, and how many of them the tests ran."""

    lines: int = 0
    lines_run: int = 0
    branches: int = 0
    branches_run: int = 0

    @property
    def of_lines(self) -> float:
        """Per cent of the lines."""
        return 100.0 * self.lines_run / self.lines if self.lines else 100.0

    @property
    def of_branches(self) -> float:
        """Per cent of the branches."""
        return 100.0 * self.branches_run / self.branches if self.branches else 100.0


def shares_by_file(report: Mapping[str, Any]) -> dict[str, Share]:
    """Return what a JSON report of coverage.py says about each file, by its path below `ipu_model/src`."""
    found = {}
    for name, file in report["files"].items():
        path = Path(name).as_posix()
        numbers = file["summary"]
        found[path.split(f"{SOURCES}/")[-1]] = Share(
            numbers["num_statements"], numbers["covered_lines"],
            numbers["num_branches"], numbers["covered_branches"],
        )  # fmt: skip
    return found


def by_package(files: Mapping[str, Share]) -> dict[str, Share]:
    """Return the sums over the files of each package."""
    sums: dict[str, Counter[str]] = {}
    for path, share in files.items():
        sums.setdefault(path.split("/")[0], Counter()).update(vars(share))
    return {package: Share(**sums[package]) for package in sorted(sums)}


def table(shares: Mapping[str, Share]) -> str:
    """Return one line for each name, under a head."""
    width = max(map(len, shares), default=0)
    head = f"{'':{width}}  {'lines':>6} {'run':>7}  {'branches':>8} {'run':>7}"
    rows = (
        f"{name:{width}}  {share.lines:6} {share.of_lines:6.1f}%  {share.branches:8} {share.of_branches:6.1f}%"
        for name, share in shares.items()
    )
    return "\n".join([head, *rows])


def measured() -> tuple[dict[str, Share], float]:
    """Return what the data file in the project's folder says, and the floor in per cent."""
    data = coverage.Coverage(config_file=str(ROOT / "pyproject.toml"))
    data.load()
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "coverage.json"
        data.json_report(outfile=str(target))
        report = json.loads(target.read_text(encoding="utf-8"))
    return shares_by_file(report), float(str(data.get_option("report:fail_under")))


def main() -> int:
    """Print packages, files below the floor, and the verdict."""
    files, floor = measured()
    packages = by_package(files)
    print(table(packages))
    poor = {path: share for path, share in sorted(files.items()) if share.of_lines < floor}
    if poor:
        print(f"\nFiles below {floor:.0f} % of their lines:")
        print(table(dict(sorted(poor.items(), key=lambda item: item[1].of_lines)[:MOST_FILES])))
    below = [package for package, share in packages.items() if share.of_lines < floor]
    print(
        f"\n{', '.join(below)} below {floor:.0f} %" if below else f"\nAll packages reach {floor:.0f} % of their lines."
    )
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main())
