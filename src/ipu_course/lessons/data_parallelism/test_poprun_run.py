"""Lesson 10's run of poprun: what is read from its output, and what is said when there is none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ipu_course.lessons.data_parallelism import poprun_run
from ipu_course.lessons.data_parallelism.poprun_run import (
    NO_POPRUN,
    PoprunEnd,
    last_word,
    lines_by_instance,
    run_poprun,
)


def test_lines_are_sorted_by_instance_however_they_come() -> None:
    printed = "[1,1]<stdout>:loaded: 8\n[1,0]<stdout>:loaded: 4\nother\n[1,1]<stdout>:agree: True\n"
    assert lines_by_instance(printed) == {1: ["loaded: 8", "agree: True"], 0: ["loaded: 4"]}


def test_rows_have_the_instances_in_order_and_a_gap_where_one_is_silent() -> None:
    end = PoprunEnd({1: ["loaded: 8", "agree: True"], 0: ["loaded: 4"]})
    assert end.rows == [
        {"fact": "loaded", "instance 0": "4", "instance 1": "8"},
        {"fact": "agree", "instance 0": "", "instance 1": "True"},
    ]


def test_the_launchers_own_last_line_is_the_problem() -> None:
    assert last_word("[1,0]<stderr>:Traceback\npoprun: instance 0 ended.\n[1,1]<stderr>:late\n") == (
        "poprun: instance 0 ended."
    )
    assert last_word("[1,0]<stderr>:only this\n") == "[1,0]<stderr>:only this"
    assert last_word("") == ""


def test_without_poprun_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poprun_run, "find_spec", lambda name: None)
    monkeypatch.setattr(poprun_run.shutil, "which", lambda *given, **named: None)
    end = run_poprun("poprun --num-instances 2 python program.py")
    assert (end.problem, end.rows, end.weights) == (NO_POPRUN, [], None)


def as_poprun(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Put a program of ours in the place of poprun."""
    launcher = folder / "launcher.py"
    launcher.write_text(text, encoding="utf-8")
    monkeypatch.setattr(poprun_run, "_launcher", lambda: [sys.executable, str(launcher)])


def test_the_command_runs_with_this_python_and_a_file_to_save_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_poprun(tmp_path, monkeypatch, "import sys\nprint('[1,0]<stdout>:got: ' + ' '.join(sys.argv[1:]))\n")
    (line,) = run_poprun("poprun --num-replicas 4 python -m a.b").lines[0]
    assert line.startswith(f"got: --num-replicas 4 {sys.executable} -m a.b --save ")
    assert not Path(line.split()[-1]).parent.exists()


def test_a_failed_run_has_a_problem_and_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_poprun(tmp_path, monkeypatch, "import sys\nsys.exit('poprun: --num-replicas must be a multiple')\n")
    end = run_poprun("poprun python -m a.b")
    assert (end.problem, end.weights) == ("poprun: --num-replicas must be a multiple", None)


def test_a_run_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = tmp_path / "ended"
    as_poprun(
        tmp_path,
        monkeypatch,
        "import signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (open({str(left)!r}, 'w').close(), sys.exit(0)))\n"
        "print('[1,0]<stdout>:ready', flush=True)\n"
        "time.sleep(60)\n",
    )
    end = run_poprun("poprun python -m a.b", limit_seconds=2.0)
    assert "time limit" in end.problem
    assert left.exists()
