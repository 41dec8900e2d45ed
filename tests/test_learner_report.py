"""`python -m ipu_course report`: one page that anyone can read, holds every answer, and loads nothing."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import webbrowser
from datetime import date
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from learner_report_support import HALF_WAY

from ipu_course.ladder import published_ladder
from ipu_course.lesson_folders import lesson_folders
from ipu_course.programs.command_line import main
from ipu_course.programs.report.overview import close_guesses, next_steps, states
from ipu_course.programs.report.page import EMPTY, report_page
from ipu_course.programs.report.wording import distance, guesses, number, visible
from ipu_course.progress import BudgetUse, ExerciseRecord, PredictionRecord, Progress, Rung, note_check, read_progress
from ipu_course.progress.store import from_text, to_text

TODAY = date(2026, 3, 2)
VOID = {"meta", "path", "rect", "use"}


class Reader(HTMLParser):
    """What a browser would make of a page: elements with their attributes, and the text in each kind of element."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert tag in VOID or self.open.pop() == tag, f"{tag} is closed, but another element is open"

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts[self.open[-1]][-1] += data

    def tags(self) -> list[str]:
        return [tag for tag, _ in self.elements]


def cells(page: str, first: str) -> list[str]:
    """The row of a table that begins with ``first``."""
    for row in re.findall(r"<tr>(.*?)</tr>", page, flags=re.DOTALL):
        found = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, flags=re.DOTALL)
        if found[0] == first:
            return found[1:]
    raise AssertionError(f"no row begins with {first!r}")


@pytest.fixture(scope="module")
def page() -> str:
    return report_page(HALF_WAY, TODAY)


# What it says


def test_predictions_stand_with_result_kind_distance_and_source(page: str) -> None:
    assert cells(page, "seconds an epoch in half precision") == [
        "120", "52.6", "modelled", "too high by a factor of 2.28", "52 s, hands-on day 03"
    ]  # fmt: skip
    assert cells(page, "bytes on the fullest tile") == [
        "400,000 (later: 700,000)", "787,456", "modelled", "too low by a factor of 1.97", "none"
    ]  # fmt: skip
    assert cells(page, "utilisation with 8 micro-batches") == ["0.8", "0.8", "computed", "exactly right", "none"]
    assert cells(page, "milliseconds of a call")[2:4] == ["measured", "too low by a factor of 904"]


def test_exercises_stand_with_their_attempts(page: str) -> None:
    assert cells(page, "01: Exercise 1") == ["solved at attempt 2", "2"]
    assert cells(page, "02: Exercise 2") == ["not solved yet", "3"]


def test_renewed_budgets_stand_with_all_compilations(page: str) -> None:
    assert "budgets" not in page
    renewed = report_page(Progress(budgets=(BudgetUse("17", "BERT-base", 3, 31),)), TODAY)
    assert cells(renewed, "17: BERT-base") == ["3", "2", "31"]
    assert "renewals" in Reader(renewed).texts["th"]


def test_the_ladder_is_in_the_hands_ons_order_whatever_order_it_was_climbed_in(page: str) -> None:
    names = [step.name for step in published_ladder().steps[:3]]
    assert [page.index(f'<th scope="row">{name}</th>') for name in names] == sorted(
        page.index(f'<th scope="row">{name}</th>') for name in names
    )
    # 52.6 / 52.4 = 1.0038
    assert cells(page, "half precision") == ["52.6 s", "52.4 s", "+0.4 %"]
    assert cells(page, "base, 32-bit") == ["does not fit", "does not fit", "-"]
    assert published_ladder().machine in page


def test_the_ladders_figure_is_described_and_takes_the_pages_colours(page: str) -> None:
    ((_, svg),) = [each for each in Reader(page).elements if each[0] == "svg"]
    assert svg["role"] == "img"
    assert svg["aria-label"] == (
        "Two bars for each step, seconds an epoch: base, 32-bit does not fit modelled, does not fit derived; "
        "half precision 52.6 seconds modelled, 52.4 seconds derived; "
        "gradient accumulation 8 46.9 seconds modelled, 46.2 seconds derived."
    )
    assert "#000000" not in page.split("<svg")[1].split("</svg>")[0]
    assert "gradient accumulation 8" in Reader(page).texts["text"]


def test_without_the_courses_data_the_ladder_is_still_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("IPU_COURSE_DATA", str(tmp_path))
    published_ladder.cache_clear()
    try:
        page = report_page(HALF_WAY, TODAY)
    finally:
        published_ladder.cache_clear()
    assert cells(page, "half precision") == ["52.6 s", "52.4 s", "+0.4 %"]


def test_lessons_and_summary_count_what_was_answered(page: str) -> None:
    by_number = {lesson.number: lesson for lesson in lesson_folders()}
    first = by_number["01"]
    assert cells(page, f"01 {first.title}") == ["begun", "2", f"1 of {first.exercises}"]
    assert cells(page, f"04 {by_number['04'].title}")[:2] == ["not begun", "0"]
    assert close_guesses(HALF_WAY) == 2, "factors 1.97 and 1; 2.28 and 904 are further off"
    assert "2 of 4" in Reader(page).texts["dd"]
    assert "2 March 2026" in page


def test_what_comes_next_is_what_was_begun_then_the_next_lesson() -> None:
    titles = {lesson.number: lesson for lesson in lesson_folders()}
    steps = next_steps(HALF_WAY)
    assert [step.split(",")[0] for step in steps] == ["Lesson 01", "Lesson 02", "Lesson 03", "Begin lesson 04"]
    assert "you have not solved Exercise 2 yet" in steps[1]
    assert titles["04"].notebook in steps[-1]
    assert next_steps(Progress()) == (
        f"Begin lesson 00, {titles['00'].title}: 00_start_here.ipynb in your copy of the notebooks.",
    )


def test_who_has_solved_everything_is_told_so() -> None:
    solved = tuple(
        ExerciseRecord(lesson.number, f"Exercise {number}", 1, 1)
        for lesson in lesson_folders()
        for number in range(1, lesson.exercises + 1)
    )
    progress = Progress(exercises=solved)
    assert all(state.done for state in states(progress))
    (step,) = next_steps(progress)
    assert step.startswith("You have finished every lesson.")


def test_a_lesson_that_is_not_in_the_list_is_shown_too() -> None:
    page = report_page(Progress(exercises=(ExerciseRecord("42", "Exercise 1", 1, 1),)), TODAY)
    assert cells(page, "Lesson 42") == ["done", "0", "1 of 1"]


def test_with_no_answers_it_says_how_answers_come_about() -> None:
    page = report_page(Progress(), TODAY)
    assert EMPTY in page
    assert "Begin lesson 00" in page
    assert "Predictions" not in Reader(page).texts["h2"]


def test_a_problem_of_the_records_is_on_the_page() -> None:
    assert "cannot be read" in report_page(Progress(problem="The progress file cannot be read (OSError)."), TODAY)


@pytest.mark.parametrize(
    ("value", "words"),
    [(260.0, "260"), (52.6, "52.6"), (0.41234567, "0.4123"), (787456.0, "787,456"), (12345.6, "12,346"),
     (-0.5, "-0.5"), (1e300, "1.000e+300"), (0.0, "0")],
)  # fmt: skip
def test_numbers_read_as_in_the_lessons(value: float, words: str) -> None:
    assert number(value) == words


@pytest.mark.parametrize(
    ("guess", "result", "words"),
    [(1, 1, "exactly right"), (1, 2, "too low by a factor of 2"), (3, 2, "too high by a factor of 1.5"),
     (0, 2, "too low"), (5, -1, "too high"), (100.1, 100, "too high, by less than 1 %"),
     (1, 1e9, "too low by a factor over 1,000")],
)  # fmt: skip
def test_the_distance_of_a_guess_in_words(guess: float, result: float, words: str) -> None:
    assert distance(PredictionRecord("01", "q", guess, result, "modelled")) == words


def test_of_many_later_guesses_the_last_three_are_listed() -> None:
    assert guesses(PredictionRecord("01", "q", 1, 9, "modelled", None, (2.0, 3.0, 4.0, 5.0))) == "1 (later: … 3, 4, 5)"


# How it is made


def test_it_is_one_page_that_loads_nothing_and_runs_nothing(page: str) -> None:
    reader = Reader(page)
    assert not set(reader.tags()) & {"script", "link", "img", "iframe", "object", "form", "input", "a", "base"}
    for tag, attributes in reader.elements:
        assert not [name for name in attributes if name.startswith("on")], tag
        outside = [str(value) for name, value in attributes.items() if name in ("src", "href", "xlink:href")]
        assert all(value.startswith("#") for value in outside), tag
    assert "default-src 'none'" in page
    assert "@import" not in page
    assert "url(http" not in page


@pytest.mark.parametrize("progress", [HALF_WAY, Progress()], ids=["half-way", "empty"])
def test_it_can_be_read_without_seeing_it(progress: Progress) -> None:
    reader = Reader(report_page(progress, TODAY))
    attributes = dict(reader.elements)
    assert attributes["html"]["lang"] == "en-GB"
    levels = [int(tag[1]) for tag in reader.tags() if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(deeper <= above + 1 for above, deeper in zip(levels, levels[1:]))
    assert reader.texts["title"] == reader.texts["h1"]
    assert all(found.get("scope") in ("col", "row") for tag, found in reader.elements if tag == "th")
    assert reader.tags().count("caption") == reader.tags().count("table")
    regions = [found for tag, found in reader.elements if tag == "div" and found.get("role") == "region"]
    assert all(found["aria-label"] and found["tabindex"] == "0" for found in regions)
    names = [found["id"] for _, found in reader.elements if "id" in found]
    assert len(names) == len(set(names))


nasty = st.text(min_size=1, max_size=30) | st.sampled_from(
    [
        "<script>alert(1)</script>",
        "</style><b>",
        "a & b",
        '" onclick="x',
        "--><img src=x>",
        "--!><i>",
        "$x_1$",
        "\ud800",
    ]
)


@given(words=nasty)
def test_what_the_learner_wrote_is_shown_and_nothing_else(words: str) -> None:
    """Every text of the records comes out of the page as it went in, and adds no element."""

    def progress(text: str) -> Progress:
        return Progress(
            (PredictionRecord("01", text, 1, 2, text, text),),
            (ExerciseRecord(f"x{text}", text, 1),),
        )

    plain, page = Reader(report_page(progress("plain"), TODAY)), report_page(progress(words), TODAY)
    reader = Reader(page)
    page.encode("utf-8")
    assert reader.tags() == plain.tags()
    for element in ("th", "td"):
        for before, after in zip(plain.texts[element], reader.texts[element]):
            assert after == before.replace("plain", visible(words))
    assert "plain" in plain.texts["th"]
    assert plain.texts["td"].count("plain") == 2


# Formulas, markup and characters that no font has.
@pytest.mark.parametrize("words", ["<b>&", "--><i>", "--!><i>", "$x_1$ $", "\ud800\x01", "步"])
@pytest.mark.filterwarnings("ignore:Glyph")
def test_a_step_of_the_ladder_may_have_any_name(words: str) -> None:
    reader = Reader(report_page(Progress(rungs=(Rung("01", words, 1.0, 2.0),)), TODAY))
    assert visible(words) in reader.texts["th"]
    assert visible(words) in reader.texts["text"]
    assert not {"b", "i"} & set(reader.tags())


# The command


@pytest.fixture
def answered(records: Path) -> Path:
    note_check("01", "Exercise 1", True)
    return records


def test_the_command_writes_the_page(
    answered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    assert main(["report"]) == 0
    assert capsys.readouterr().out == "Your report is ipu_course_report.html.\n"
    assert cells((tmp_path / "ipu_course_report.html").read_text(encoding="utf-8"), "01: Exercise 1")
    assert opened == []


def test_only_on_demand_it_opens_the_page(
    answered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "my page.html"
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)  # gives None: no browser
    assert main(["report", "--output", str(page), "--open"]) == 0
    assert opened == [page.as_uri()]
    assert "Open the file yourself" in capsys.readouterr().out


def test_it_replaces_a_report_but_nothing_else(
    answered: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, other = tmp_path / "report.html", tmp_path / "thesis.html"
    assert main(["report", "--output", str(page)]) == 0
    note_check("02", "Exercise 1", True)
    assert main(["report", "--output", str(page)]) == 0
    assert cells(page.read_text(encoding="utf-8"), "02: Exercise 1")
    for content in (b"<!DOCTYPE html><p>years of work", b"", b"\xff\x00"):
        other.write_bytes(content)
        assert main(["report", "--output", str(other)]) == 2
        assert other.read_bytes() == content
        assert "not a report of this course" in capsys.readouterr().err
    assert main(["report", "--output", str(tmp_path)]) == 2
    assert main(["report", "--output", str(tmp_path / "nowhere" / "report.html")]) == 2
    assert "choose another file with --output" in capsys.readouterr().err


@pytest.mark.parametrize("options", ["report --output", "report --export", "leaderboard result --output"])
def test_a_full_disk_leaves_an_older_file_and_nothing_in_the_way_of_the_next_run(
    options: str, answered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.chdir(tmp_path)
    assert main(["report", "--export", "result"]) == 0
    for before in ([], [tmp_path / "file"]):
        content = [file.read_bytes() for file in before]
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            assert main([*options.split(), "file"]) == 2
        assert "file cannot be written (No space left on device)" in capsys.readouterr().err
        assert sorted(tmp_path.iterdir()) == [*before, answered.parent, tmp_path / "result"]
        assert [file.read_bytes() for file in before] == content
        assert main([*options.split(), "file"]) == 0


def test_with_no_records_it_says_how_to_begin(
    records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--output", str(tmp_path / "report.html")]) == 0
    assert EMPTY in capsys.readouterr().out
    assert not records.parent.exists(), "a report writes no records"


def test_json_is_the_records_alone(answered: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--json"]) == 0
    assert from_text(capsys.readouterr().out) == read_progress()
    answered.write_text("damaged")
    assert main(["report", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["exercises"] == []
    assert "damaged" in printed.err


def test_a_reset_needs_a_yes_and_keeps_a_backup(
    answered: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = answered.read_bytes()
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    assert main(["report", "--reset"]) == 2
    assert "--reset --yes" in capsys.readouterr().err
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    for answer in ("", "n", "maybe"):
        monkeypatch.setattr("builtins.input", lambda question, answer=answer: answer)
        assert main(["report", "--reset"]) == 0
        assert answered.read_bytes() == before
    monkeypatch.setattr("builtins.input", lambda question: "Y")
    assert main(["report", "--reset"]) == 0
    backup = answered.with_name("progress.backup-1.json")
    assert backup.read_bytes() == before
    assert str(backup) in capsys.readouterr().out
    assert read_progress() == Progress()
    assert main(["report", "--reset", "--yes"]) == 0
    assert "no records" in capsys.readouterr().out


def test_a_reset_that_cannot_be_says_so(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records.mkdir(parents=True)
    assert main(["report", "--reset", "--yes"]) == 2
    assert "nothing was changed" in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--yes"], ["--json", "--open"], ["--reset", "--yes", "--output", "x.html"]])
def test_options_that_mean_nothing_together_are_refused(answered: Path, options: list[str]) -> None:
    before = answered.read_bytes()
    assert main(["report", *options]) == 2
    assert answered.read_bytes() == before


def test_json_of_everything_can_be_read_again(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records.parent.mkdir()
    records.write_text(to_text(HALF_WAY))
    assert main(["report", "--json"]) == 0
    assert from_text(capsys.readouterr().out) == HALF_WAY
