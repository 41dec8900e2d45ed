"""The learner's records: which answers count, and a file that survives damage, full disks and many kernels."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipu_course.progress import (
    BudgetUse,
    ExerciseRecord,
    PredictionRecord,
    Progress,
    QuizAnswer,
    Rung,
    Score,
    note_budget,
    note_check,
    note_prediction,
    note_quiz,
    note_rung,
    note_score,
    notes,
    read_progress,
)
from ipu_course.progress.store import (
    LOCK_SECONDS,
    VERSION,
    DamagedFile,
    NewerFile,
    from_text,
    locked,
    progress_file,
    reset,
    to_text,
)

numbers = st.floats(allow_nan=False, allow_infinity=False)
words = st.text(max_size=12)
maybe = st.none() | numbers


def files_beside(records: Path) -> list[str]:
    return sorted(file.name for file in records.parent.iterdir())


def attempt(lesson: str, exercise: str, correct: bool) -> ExerciseRecord:
    return ExerciseRecord(lesson, exercise, 1, 1 if correct else None)


# Which answers count


@given(guesses=st.lists(numbers, min_size=1), results=st.lists(numbers, min_size=1))
def test_only_the_first_guess_counts(guesses: list[float], results: list[float]) -> None:
    """A cell that is run again after its result was seen must not improve the record."""
    progress = Progress()
    for place, guess in enumerate(guesses):
        result = results[place % len(results)]
        progress = progress.with_entries([PredictionRecord("01", "seconds", guess, result, "modelled")])
    (kept,) = progress.predictions
    assert (kept.guess, kept.result) == (guesses[0], results[0])
    changes = [new for old, new in zip(guesses, guesses[1:]) if new != old]
    assert list(kept.later_guesses) == changes


@given(verdicts=st.lists(st.booleans(), min_size=1))
def test_attempts_are_counted_and_solved_stays_solved(verdicts: list[bool]) -> None:
    progress = Progress()
    for verdict in verdicts:
        progress = progress.with_entries([attempt("01", "Exercise 1", verdict)])
    (kept,) = progress.exercises
    assert kept.attempts == len(verdicts)
    assert kept.correct == any(verdicts)
    assert kept.solved_at == (verdicts.index(True) + 1 if any(verdicts) else None)


@given(times=st.lists(st.tuples(maybe, maybe), min_size=1))
def test_a_step_of_the_ladder_keeps_its_latest_known_seconds(times: list[tuple[float | None, float | None]]) -> None:
    progress = Progress()
    for modelled, published in times:
        progress = progress.with_entries([Rung("01", "half precision", modelled, published)])
    (kept,) = progress.rungs
    for place, value in enumerate((kept.modelled_epoch_seconds, kept.published_epoch_seconds)):
        known = [pair[place] for pair in times if pair[place] is not None]
        assert value == (known[-1] if known else None)


@given(values=st.lists(numbers, min_size=1), better=st.sampled_from(["lower", "higher"]))
def test_the_best_score_is_kept(values: list[float], better: str) -> None:
    progress = Progress()
    for value in values:
        progress = progress.with_entries([Score("06", "Exercise 1", value, "ms", better)])
    (kept,) = progress.scores
    assert kept.value == (min(values) if better == "lower" else max(values))


def test_budgets_and_what_was_used_of_them_are_counted_together(records: Path) -> None:
    note_budget("17", "BERT-base", 1, 2)
    note_budget("17", "BERT-base", 0, 1)
    assert [each.renewals for each in read_progress().budgets] == [0]
    note_budget("17", "BERT-base", 1, 1)
    note_budget("17", "BERT-large", 1, 5)
    note_budget("17", "BERT-large", -1, 5)
    notes._waiting.clear()
    assert read_progress().budgets == (BudgetUse("17", "BERT-base", 2, 4), BudgetUse("17", "BERT-large", 1, 5))
    assert [each.renewals for each in read_progress().budgets] == [1, 0]


def test_a_file_of_the_third_version_has_no_budgets() -> None:
    content = to_text(Progress(scores=(Score("06", "Exercise 1", 1.0, "ms", "lower"),)))
    older = {**json.loads(content), "version": 3}
    del older["budgets"]
    assert from_text(json.dumps(older)) == from_text(content)


def test_what_is_no_score_is_not_noted(records: Path) -> None:
    note_score("06", "Exercise 1", float("nan"), "ms", "lower")
    note_score("06", "Exercise 1", 1.0, "ms", "best")
    assert read_progress() == Progress()


def test_a_quiz_keeps_the_first_answer_before_the_lessons_and_the_last_one_after_them(records: Path) -> None:
    for letter in "ab":
        note_quiz("speed", "pipeline", before=letter)
        note_quiz("speed", "pipeline", after=letter)
    assert read_progress().quiz_answers == (QuizAnswer("speed", "pipeline", "a", "b"),)


def test_a_file_of_the_first_version_can_be_read() -> None:
    content = '{"version": 1, "predictions": [], "exercises": [], "rungs": []}'
    assert from_text(content) == Progress()


def test_a_file_of_the_second_version_keeps_what_it_called_published() -> None:
    content = to_text(Progress((PredictionRecord("01", "q", 1, 2, "modelled", "52 s [1]"),)))
    older = content.replace(f'"version": {VERSION}', '"version": 2').replace('"compared_with"', '"published"')
    assert "published" in older
    assert from_text(older) == from_text(content)


@given(entries=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), st.booleans())))
def test_entries_of_other_lessons_and_exercises_stay_apart_in_their_first_order(
    entries: list[tuple[str, str, bool]],
) -> None:
    progress = Progress()
    for lesson, exercise, verdict in entries:
        progress = progress.with_entries([attempt(lesson, exercise, verdict)])
    names = [(record.lesson, record.exercise) for record in progress.exercises]
    assert names == list(dict.fromkeys((lesson, exercise) for lesson, exercise, _ in entries))
    assert sum(record.attempts for record in progress.exercises) == len(entries)


@pytest.mark.parametrize(
    ("guess", "result", "factor"),
    [(4, 2, 2), (2, 4, 2), (-2, -4, 2), (3, 3, 1), (0, 0, 1), (0, 5, None), (-1, 1, None), (1e308, 1e-308, None)],
)
def test_the_factor_between_guess_and_result(guess: float, result: float, factor: float | None) -> None:
    assert PredictionRecord("01", "q", guess, result, "modelled").factor_off == factor


def test_what_is_noted_is_read_again_from_the_file(records: Path) -> None:
    note_prediction("01", "seconds an epoch", 100, 52.6, "modelled", "52 s, hands-on day 03")
    note_check("01", "Exercise 1", False)
    note_check("01", "Exercise 1", True)
    note_rung("01", "half precision", 52.6, 52.4)
    notes._waiting.clear()
    assert read_progress() == Progress(
        predictions=(PredictionRecord("01", "seconds an epoch", 100.0, 52.6, "modelled", "52 s, hands-on day 03"),),
        exercises=(ExerciseRecord("01", "Exercise 1", attempts=2, solved_at=2),),
        rungs=(Rung("01", "half precision", 52.6, 52.4),),
    )
    assert files_beside(records) == ["progress.json", "progress.json.lock"]


class Awkward:
    """What a learner's variable may be."""

    def __float__(self) -> float:
        raise ZeroDivisionError

    def __bool__(self) -> bool:
        raise ZeroDivisionError

    def __str__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize("guess", [float("nan"), float("inf"), 10**400, None, ..., "many", Awkward()])
def test_a_guess_that_is_no_finite_number_is_not_noted(
    records: Path, guess: object, capfd: pytest.CaptureFixture[str]
) -> None:
    note_prediction("01", "q", guess, 1.0, "modelled")  # type: ignore[arg-type]
    note_prediction("01", "q", 1.0, guess, "modelled")  # type: ignore[arg-type]
    note_check("01", Awkward(), True)  # type: ignore[arg-type]
    note_check("01", "Exercise 1", Awkward())  # type: ignore[arg-type]
    note_rung("01", "step", Awkward(), None)  # type: ignore[arg-type]
    assert read_progress() == Progress()
    assert not records.exists()
    assert capfd.readouterr() == ("", "")


def test_text_that_no_file_can_hold_does_not_damage_the_record(records: Path) -> None:
    note_prediction("01", "half a pair: \ud800", 1, 2, "modelled")
    assert from_text(records.read_text()).predictions[0].quantity == "half a pair: ?"


# The file


def progresses() -> st.SearchStrategy[Progress]:
    predictions = st.builds(
        PredictionRecord, words, words, numbers, numbers, words, st.none() | words, st.lists(numbers).map(tuple)
    )
    solved = st.integers(1, 99).flatmap(lambda n: st.tuples(st.just(n), st.none() | st.integers(1, n)))
    exercises = st.builds(lambda lesson, name, pair: ExerciseRecord(lesson, name, *pair), words, words, solved)
    rungs = st.builds(Rung, words, words, maybe, maybe)
    scores = st.builds(Score, words, words, numbers, words, st.sampled_from(["lower", "higher"]))
    quiz_answers = st.builds(QuizAnswer, words, words, words, words)
    budgets = st.builds(BudgetUse, words, words, st.integers(0, 99), st.integers(0, 99))
    kinds = (predictions, exercises, rungs, scores, quiz_answers, budgets)
    return st.builds(Progress, *(st.lists(kind, max_size=3).map(tuple) for kind in kinds))


@given(progresses())
def test_every_record_survives_the_file(progress: Progress) -> None:
    assert from_text(to_text(progress).encode().decode()) == progress


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)
KINDS = ("predictions", "exercises", "rungs", "scores", "quiz_answers", "budgets")
entry_names = st.sampled_from(
    ["lesson", "quantity", "guess", "attempts", "solved_at", "step", "exercise", "better", "quiz"]
)
nearly = st.fixed_dictionaries(
    {"version": st.just(VERSION) | json_values},
    optional={kind: st.lists(st.dictionaries(entry_names, json_values), max_size=2) | json_values for kind in KINDS},
)


@given(st.text() | (json_values | nearly).map(json.dumps))
def test_other_content_is_damaged_or_newer_and_nothing_else_happens(text: str) -> None:
    try:
        progress = from_text(text)
    except (DamagedFile, NewerFile):
        return
    assert set(json.loads(text)) >= {"version", *KINDS}
    assert from_text(to_text(progress)) == progress


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b'{"version": 1, "predictions": [', b"[]", b'{"version": 1}'])
def test_a_damaged_file_is_kept_under_another_name(records: Path, content: bytes) -> None:
    records.parent.mkdir()
    records.with_name("progress.damaged-1.json").write_text("an older one")
    records.write_bytes(content)
    before = read_progress()
    assert before.empty
    assert "damaged" in str(before.problem)
    assert records.read_bytes() == content, "reading alone changes nothing"
    note_check("01", "Exercise 1", True)
    assert read_progress() == Progress(exercises=(ExerciseRecord("01", "Exercise 1", 1, 1),))
    assert records.with_name("progress.damaged-1.json").read_text() == "an older one"
    assert records.with_name("progress.damaged-2.json").read_bytes() == content


def test_a_file_of_a_later_release_is_left_alone(records: Path) -> None:
    records.parent.mkdir()
    content = json.dumps({"version": VERSION + 1, "everything": "else"})
    records.write_text(content)
    note_check("01", "Exercise 1", True)
    progress = read_progress()
    assert progress.exercises == (ExerciseRecord("01", "Exercise 1", 1, 1),), "it counts in this session"
    assert "newer release" in str(progress.problem)
    assert records.read_text() == content
    assert files_beside(records) == ["progress.json", "progress.json.lock"]


def test_without_a_place_to_write_answers_count_in_this_session_and_are_written_when_there_is_one(
    records: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    records.parent.write_text("a file where the folder should be")
    note_check("01", "Exercise 1", False)
    note_check("01", "Exercise 1", False)
    progress = read_progress()
    assert progress.exercises == (ExerciseRecord("01", "Exercise 1", 2),)
    assert progress.problem is not None
    records.parent.unlink()
    note_check("01", "Exercise 1", True)
    assert from_text(records.read_text()) == read_progress()
    assert read_progress() == Progress(exercises=(ExerciseRecord("01", "Exercise 1", 3, 3),))
    assert capfd.readouterr() == ("", "")


def test_a_full_disk_leaves_the_old_file_whole(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note_check("01", "Exercise 1", False)
    content = records.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        note_check("01", "Exercise 1", True)
    assert records.read_bytes() == content
    assert files_beside(records) == ["progress.json", "progress.json.lock"], "no half-written file stays"
    assert read_progress().exercises == (ExerciseRecord("01", "Exercise 1", 2, 2),)
    assert "could not be written" in str(read_progress().problem)


def test_what_is_no_regular_file_is_not_replaced(records: Path) -> None:
    """A device such as /dev/null, or a folder: whoever names one wants no record."""
    records.mkdir(parents=True)
    note_check("01", "Exercise 1", True)
    assert records.is_dir()
    assert files_beside(records) == ["progress.json"]
    assert read_progress().exercises == (ExerciseRecord("01", "Exercise 1", 1, 1),)


def test_a_link_stays_a_link(records: Path, tmp_path: Path) -> None:
    records.parent.mkdir()
    target = tmp_path / "elsewhere.json"
    target.write_text(to_text(Progress()))
    records.symlink_to(target)
    note_check("01", "Exercise 1", True)
    assert records.is_symlink()
    assert from_text(target.read_text()).exercises == (ExerciseRecord("01", "Exercise 1", 1, 1),)


def test_a_reset_keeps_every_backup(records: Path) -> None:
    assert reset(records) is None
    for number in (1, 2):
        note_check(f"0{number}", "Exercise 1", True)
        backup = reset(records)
        assert backup == records.with_name(f"progress.backup-{number}.json")
        assert from_text(backup.read_text()).exercises[0].lesson == f"0{number}"
        assert read_progress() == Progress()


# Several kernels

WRITER = """
import sys
from ipu_course.progress import note_check, note_prediction, notes
notes.LOCK_SECONDS = 120.0  # a busy machine is no reason to fail
for number in range(int(sys.argv[2])):
    note_check("01", "Exercise 1", number == 0)
    note_prediction(sys.argv[1], f"quantity {number}", number, 1, "computed")
assert not notes._waiting
"""


def test_kernels_that_write_at_once_lose_nothing(records: Path) -> None:
    kernels, rounds = 4, 15
    running = [
        subprocess.Popen([sys.executable, "-c", WRITER, f"kernel {kernel}", str(rounds)]) for kernel in range(kernels)
    ]
    assert [process.wait(timeout=300) for process in running] == [0] * kernels
    progress = read_progress()
    (exercise,) = progress.exercises
    assert (exercise.attempts, exercise.solved_at) == (kernels * rounds, 1)
    written = {(each.lesson, each.quantity) for each in progress.predictions}
    assert written == {(f"kernel {kernel}", f"quantity {n}") for kernel in range(kernels) for n in range(rounds)}
    assert files_beside(records) == ["progress.json", "progress.json.lock"]


def test_a_lock_that_is_never_freed_stops_nobody(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note_check("01", "Exercise 1", False)
    waited: list[float] = []

    def impatient(path: Path, wait_seconds: float) -> object:
        waited.append(wait_seconds)
        return locked(path, 0.0)

    monkeypatch.setattr("ipu_course.progress.store.locked", impatient)
    with locked(records, 0.0):
        note_check("01", "Exercise 1", False)
        note_check("01", "Exercise 1", True)
        assert read_progress().exercises == (ExerciseRecord("01", "Exercise 1", 3, 3),)
    assert waited == [LOCK_SECONDS, 0.0], "only the first note waits"
    note_check("01", "Exercise 2", True)
    assert [record.attempts for record in from_text(records.read_text()).exercises] == [3, 1]


def test_a_file_system_without_locks_keeps_answers_too(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("ipu_course.progress.store.FileLock.acquire", no_locks)
    note_check("01", "Exercise 1", True)
    assert from_text(records.read_text()).exercises == (ExerciseRecord("01", "Exercise 1", 1, 1),)


# Where the file lies


@pytest.mark.skipif(sys.platform != "linux", reason="the folders are those of Linux")
@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "/home/ann/.local/share/ipu-course/progress.json"),
        ({"XDG_DATA_HOME": "/data"}, "/data/ipu-course/progress.json"),
        ({"IPU_COURSE_PROGRESS": "~/mine.json", "XDG_DATA_HOME": "/data"}, "/home/ann/mine.json"),
        ({"IPU_COURSE_PROGRESS": " "}, "/home/ann/.local/share/ipu-course/progress.json"),
    ],
)
def test_the_file_lies_in_the_users_data_folder(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
) -> None:
    for name in ("IPU_COURSE_PROGRESS", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/ann")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert progress_file() == Path(expected)


def test_without_a_home_folder_no_file_is_made_in_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("IPU_COURSE_PROGRESS", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # what Python does for a user without one
    with pytest.raises(RuntimeError, match="home"):
        progress_file()
    note_check("01", "Exercise 1", True)
    assert read_progress().exercises == (ExerciseRecord("01", "Exercise 1", 1, 1),)
    assert not list(tmp_path.iterdir())


def test_tests_do_not_touch_the_answers_of_whoever_starts_them() -> None:
    assert "ipu-course-tests-" in str(progress_file())
