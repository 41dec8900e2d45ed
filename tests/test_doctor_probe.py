"""The probe runs what may crash or hang in a process of its own; the doctor tells which stage it was."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from ipu_course import engine
from ipu_course.programs.doctor import probe
from ipu_course.programs.doctor.finding import Finding, Severity
from ipu_course.programs.doctor.probe import Stage, judge_stages, read_answers


def line(check: str, works: bool = True, text: str = "It works.") -> str:
    return json.dumps([check, works, text])


def judged(said: str) -> dict[str, Finding]:
    return {result.check: result.finding for result in judge_stages(read_answers(said), "ended with code 1")}


def probe_that_runs(code: str, seconds: float = 60) -> dict[str, Finding]:
    return {result.check: result.finding for result in probe.probe([sys.executable, "-c", code], seconds)}


def test_a_stage_that_worked_and_one_that_failed() -> None:
    findings = judged(
        "\n".join([line("import torch"), "a library's chatter", "[]", line("worker process", False, "no")])
    )
    assert findings["import torch"].verdict is Severity.OK
    failed = findings["worker process"]
    assert (failed.verdict, failed.what) == (Severity.PROBLEM, "no")
    assert "--shm-size" in failed.cure


def test_a_crash_is_told_of_the_stage_that_it_happened_in() -> None:
    """An old processor ends torch's import with signal 4, and no Python error."""
    findings = probe_that_runs(f"import os; print({line('import torch')!r}, flush=True); os.kill(os.getpid(), 4)")
    assert findings["import torch"].verdict is Severity.OK
    crashed, untried = findings["import torchvision"], findings["import poptorch"]
    assert "signal 4" in crashed.what
    assert untried.what == "This was not tried, because the test process ended at 'import torchvision'."
    assert Severity.PROBLEM is crashed.verdict is untried.verdict


def test_a_process_that_cannot_start_python_shows_its_last_words() -> None:
    findings = probe_that_runs("raise SystemExit('no module named ipu_course')")
    assert findings["import torch"].what == "The test process ended with code 1: no module named ipu_course."


def test_a_worker_that_never_ends_is_ended_with_its_children(tmp_path: Path) -> None:
    note = tmp_path / "child"
    code = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(note)!r}, "w").write(str(child.pid))
print({line("import torch")!r}, flush=True)
time.sleep(600)
"""
    findings = probe_that_runs(code, seconds=3)
    assert findings["import torch"].verdict is Severity.OK
    assert findings["import torchvision"].what == "The test process did not end within 3 seconds."
    assert is_gone(int(note.read_text()))


def is_gone(process: int) -> bool:
    """Whether a process has ended, or is only waiting for its new parent to notice; given some seconds for it."""
    for _ in range(50):
        try:
            os.kill(process, 0)
            state = Path(f"/proc/{process}/stat")
            if state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("stage", probe.STAGES[:-1], ids=lambda stage: stage.check)
def test_the_stages_work_here(stage: Stage) -> None:
    assert stage.run()


def test_without_the_engine_the_stage_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "is_available", lambda: False)
    assert probe.use_engine().startswith("There is no IPU Model here")


def test_a_stage_that_raises_does_not_end_the_probe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> str:
        raise OSError("damaged")

    monkeypatch.setattr(probe, "STAGES", (Stage("torch", fail, "", ""), Stage("data", lambda: "read", "", "")))
    probe.main()
    assert read_answers(capsys.readouterr().out) == {"torch": (False, "OSError: damaged"), "data": (True, "read")}
