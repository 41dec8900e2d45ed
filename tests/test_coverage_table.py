"""The table of `make coverage`: sums by package, and a floor that one package cannot hide behind another."""

from __future__ import annotations

from typing import Any

import coverage_table
import pytest
from coverage_table import Share, by_package, shares_by_file, table

FILES = {
    "poptorch/_executor.py": Share(lines=100, lines_run=95, branches=40, branches_run=30),
    "poptorch/ops/cond.py": Share(lines=100, lines_run=87, branches=0, branches_run=0),
    "popdist/backend.py": Share(lines=10, lines_run=8, branches=4, branches_run=4),
}


def test_a_report_is_read_by_the_files_of_the_packages() -> None:
    summary = {"num_statements": 4, "covered_lines": 3, "num_branches": 2, "covered_branches": 1, "other": 7}
    report: dict[str, Any] = {"files": {"ipu_model/src/popdist/backend.py": {"summary": summary}}}
    assert shares_by_file(report) == {"popdist/backend.py": Share(4, 3, 2, 1)}


def test_a_package_is_the_sum_of_its_files() -> None:
    packages = by_package(FILES)
    assert packages == {"popdist": Share(10, 8, 4, 4), "poptorch": Share(200, 182, 40, 30)}
    assert packages["poptorch"].of_lines == 91.0
    assert packages["poptorch"].of_branches == 75.0


def test_a_file_without_branches_has_run_all_of_them() -> None:
    assert FILES["poptorch/ops/cond.py"].of_branches == 100.0
    assert Share().of_lines == 100.0


def test_the_columns_line_up() -> None:
    lines = table(by_package(FILES)).splitlines()
    assert lines[2].split() == ["poptorch", "200", "91.0%", "40", "75.0%"]
    assert len({len(line) for line in lines}) == 1


@pytest.mark.parametrize(("floor", "code"), [(80.0, 0), (90.0, 1)])
def test_every_package_must_reach_the_floor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], floor: float, code: int
) -> None:
    monkeypatch.setattr(coverage_table, "measured", lambda: (FILES, floor))
    assert coverage_table.main() == code
    printed = capsys.readouterr().out
    if code:
        assert printed.endswith("popdist below 90 %\n")
        assert "poptorch/ops/cond.py" in printed.split("Files below 90 %")[1]
        assert "_executor" not in printed
    else:
        assert printed.endswith("All packages reach 80 % of their lines.\n")
