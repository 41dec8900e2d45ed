"""The doctor as a whole: the command, its exit code and JSON, and the cell of a notebook."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ipu_course.programs.command_line import main
from ipu_course.programs.doctor import doctor, examination
from ipu_course.programs.doctor.examination import CHECKS, careful, examine
from ipu_course.programs.doctor.finding import (
    CheckResult,
    Finding,
    Severity,
    as_json,
    brief_text,
    exit_code,
    full_text,
    notice,
    ok,
    problem,
)
from ipu_course.programs.doctor.probe import STAGES

RESULTS = [
    CheckResult("Python", ok("Python 3.11 (x86_64)")),
    CheckResult("kernel", notice("a kernel in /home/learner", "it hides this one", "rm -r '/home/learner/a kernel'")),
    CheckResult("memory", problem("0.5 GiB available", "kernels end", "close programs")),
]


@pytest.fixture
def quick_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the probe say that everything works."""
    monkeypatch.setattr(examination, "probe", lambda: [CheckResult(stage.check, ok("It works.")) for stage in STAGES])


def failing_check() -> Finding:
    raise ZeroDivisionError("unexpected")


def test_every_finding_says_what_why_and_the_cure() -> None:
    text = full_text(RESULTS)
    assert "problem  memory                   0.5 GiB available" in text
    assert "why: kernels end" in text
    assert "cure: close programs" in text
    assert text.endswith("1 ok, 1 notice, 1 problem")


def test_the_brief_text_has_no_path_version_or_number() -> None:
    text = brief_text(RESULTS)
    assert text.splitlines()[:3] == ["ok       Python", "notice   kernel", "problem  memory"]
    assert not any(character.isdigit() or character == "/" for character in text)


@pytest.mark.parametrize(
    ("kept", "last"),
    [(3, "Some lessons will not run yet."), (2, "The lessons run here. The command"), (1, "The lessons run here.")],
)
def test_the_brief_text_ends_with_the_worst(kept: int, last: str) -> None:
    assert brief_text(RESULTS[:kept]).splitlines()[-1].startswith(last)


@pytest.mark.parametrize(("kept", "code"), [(3, 1), (2, 0), (1, 0)])
def test_only_problems_make_the_exit_code(kept: int, code: int) -> None:
    assert exit_code(RESULTS[:kept]) == code


def test_json_holds_every_finding() -> None:
    entries = json.loads(as_json(RESULTS))
    assert [entry["verdict"] for entry in entries] == ["ok", "notice", "problem"]
    assert entries[2] == {
        "check": "memory",
        "verdict": "problem",
        "what": "0.5 GiB available",
        "why": "kernels end",
        "cure": "close programs",
    }


def test_a_check_that_fails_itself_is_a_finding() -> None:
    finding = careful(failing_check)
    assert finding.verdict is Severity.PROBLEM
    assert "ZeroDivisionError" in finding.what


def test_without_jupyters_packages_the_doctor_still_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("jupyter_client.kernelspec", "jupyter_core.paths", "psutil"):
        monkeypatch.setitem(sys.modules, package, None)
    findings = {name: careful(check) for name, check in CHECKS}
    assert {findings[name].verdict for name in ("memory", "kernel", "JupyterLab and widgets")} == {Severity.PROBLEM}
    assert findings["memory"].what == "The package 'psutil' is missing."
    assert findings["Python"].verdict is Severity.OK


@pytest.mark.usefixtures("quick_probe")
def test_the_examination_runs_each_check_once_and_reports_in_order() -> None:
    names = [result.check for result in examine()]
    assert names == [name for name, _ in CHECKS] + [stage.check for stage in STAGES]
    assert len(set(names)) == len(names)


@pytest.mark.usefixtures("quick_probe")
def test_the_command_ends_with_1_when_there_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = tmp_path / "kernels" / "python3" / "kernel.json"
    kernel.parent.mkdir(parents=True)
    kernel.write_text('{"argv": ["/gone/python"], "display_name": "x", "language": "python"}', encoding="utf-8")
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "0")
    assert main(["doctor"]) == 1
    assert "problem  kernel" in capsys.readouterr().out


@pytest.mark.usefixtures("quick_probe")
def test_in_a_notebook_it_prints_and_returns_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    doctor(brief=True)
    brief = capsys.readouterr().out
    assert brief.startswith("ok       Python\n")
    doctor()
    assert capsys.readouterr().out.startswith("ok       Python                   This is Python 3.")


def test_the_real_probe_works_in_another_folder_than_the_courses(tmp_path: Path) -> None:
    """A worker process included; nothing is left behind."""
    done = subprocess.run(
        [sys.executable, "-m", "ipu_course", "doctor", "--json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    stages = json.loads(done.stdout)[-len(STAGES) :]
    assert [(entry["check"], entry["verdict"]) for entry in stages] == [(stage.check, "ok") for stage in STAGES]
    assert list(tmp_path.iterdir()) == []
