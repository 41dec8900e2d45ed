"""The probe runs what may crash or hang in a process of its own; the doctor tells which stage it was."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from ipu_course.programs.doctor import probe
from ipu_course.programs.doctor.finding import Verdict
from ipu_course.programs.doctor.probing import ADVICE, Probe, ProbeResult, judge_stage, read_lines


def line(stage: str, works: bool = True, text: str = "fine") -> str:
    return json.dumps({"stage": stage, "works": works, "text": text})


def probe_that_runs(code: str, seconds: float = 60) -> ProbeResult:
    return Probe([sys.executable, "-c", code], seconds).result()


def test_every_stage_has_its_advice() -> None:
    assert list(ADVICE) == list(probe.STAGES)


def test_a_stage_that_worked_and_one_that_failed() -> None:
    result = ProbeResult(read_lines("\n".join([line("torch"), "a library's chatter", line("data", False, "gone")])))
    assert judge_stage("torch", result).verdict is Verdict.OK
    failed = judge_stage("data", result)
    assert (failed.verdict, failed.what) == (Verdict.PROBLEM, "gone")
    assert failed.cure


def test_a_crash_is_told_of_the_stage_that_it_happened_in() -> None:
    """An old processor ends torch's import with signal 4, and no Python error."""
    result = probe_that_runs(f"import os; print({line('torch')!r}, flush=True); os.kill(os.getpid(), 4)")
    assert judge_stage("torch", result).verdict is Verdict.OK
    crashed, untried = judge_stage("torchvision", result), judge_stage("poptorch", result)
    assert "signal 4" in crashed.what
    assert untried.what == "not tried: the test process ended at torchvision"
    assert Verdict.PROBLEM is crashed.verdict is untried.verdict


def test_a_process_that_cannot_start_python_shows_its_last_words() -> None:
    result = probe_that_runs("raise SystemExit('no module named ipu_course')")
    assert "no module named ipu_course" in judge_stage("torch", result).what


def test_a_worker_that_never_ends_is_ended_with_its_children(tmp_path: Path) -> None:
    note = tmp_path / "child"
    code = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(note)!r}, "w").write(str(child.pid))
print({line("torch")!r}, flush=True)
time.sleep(600)
"""
    result = probe_that_runs(code, seconds=3)
    assert result.ending == "did not end within 3 seconds"
    assert judge_stage("torch", result).verdict is Verdict.OK
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


@pytest.mark.parametrize("stage", ["torch", "torchvision", "poptorch", "engine", "data"])
def test_the_stages_work_here(stage: str) -> None:
    assert probe.STAGES[stage]()


def test_without_the_engine_the_stage_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "find_spec", lambda name: None)
    assert probe.use_engine().startswith("no IPU Model here")


def test_a_stage_that_raises_does_not_end_the_probe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> str:
        raise OSError("damaged")

    monkeypatch.setattr(probe, "STAGES", {"torch": fail, "data": lambda: "read"})
    probe.main()
    assert read_lines(capsys.readouterr().out) == {"torch": (False, "OSError: damaged"), "data": (True, "read")}
