"""A lesson as its notebook uses it: checks that are noted, explorers that are shown, figures fetched by key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ipu_course import engine, explorers, lesson_folders, published, takeaways
from ipu_course import lesson as lesson_module
from ipu_course.exercises import Number, Numbers
from ipu_course.explorers import Explorer, Slider, Switch, View
from ipu_course.lesson import Lesson, wait_for_guesses
from ipu_course.not_modelled import NOT_MODELLED
from ipu_course.progress import read_progress

CALLS = Numbers(Number("calls", 25, wrong={26: "The last call is not full."}), praise="25 full calls.")


def seen(first: object, second: object, count: int, loud: bool) -> View:
    return View(text=f"{first} and {second}: {count}{'!' if loud else ''}")


KNOBS = Explorer({"count": Slider("count", (1, 2, 4), 2), "loud": Switch("loud")}, seen)
LESSON = Lesson("06", exercises=(CALLS,), explorers=(KNOBS, Explorer({}, lambda: View(text="the second"))))


@pytest.fixture(autouse=True)
def own_progress(records: Path) -> None:
    """Give every test records of its own, and none that an earlier one could not write."""


class TestCheck:
    def test_the_verdict_is_printed_and_every_attempt_noted(self, capsys: pytest.CaptureFixture[str]) -> None:
        for answer in (..., 26, 25):
            LESSON.check(1, answer)
        assert capsys.readouterr().out.splitlines() == [
            "Exercise 1: not attempted yet",
            "Exercise 1: not yet. The last call is not full.",
            "Exercise 1: correct. 25 full calls.",
        ]
        (noted,) = read_progress().exercises
        assert (noted.lesson, noted.exercise, noted.attempts, noted.solved_at) == ("06", "Exercise 1", 2, 2)

    @pytest.mark.parametrize("number", [0, 2])
    def test_an_exercise_that_there_is_not_is_refused(self, number: int) -> None:
        with pytest.raises(ValueError, match=f"there is no exercise {number}: this lesson has 1"):
            LESSON.check(number, 25)


class TestExplore:
    @pytest.fixture
    def shown(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        words: list[str] = []
        monkeypatch.setattr(explorers, "display_raw", lambda data, *_, **__: words.append(data["text/plain"]))
        return words

    def test_the_view_gets_the_subjects_and_the_defaults(self, shown: list[str]) -> None:
        LESSON.explore("one", "two")
        assert shown[1] == "one and two: 2"

    def test_a_setting_replaces_a_default(self, shown: list[str]) -> None:
        LESSON.explore("one", "two", count=4, loud=True)
        assert shown[1] == "one and two: 4!"

    def test_another_explorer_is_chosen_by_its_number(self, shown: list[str]) -> None:
        LESSON.explore(explorer=2)
        assert shown[1] == "the second"

    def test_unknown_settings_and_values_are_refused_with_those_there_are(self, shown: list[str]) -> None:
        with pytest.raises(ValueError, match="no control 'size'; it has count, loud"):
            LESSON.explore("one", "two", size=4)
        with pytest.raises(ValueError, match=r"the default 3 is none of its values \[1, 2, 4\]"):
            LESSON.explore("one", "two", count=3)

    def test_without_a_modelled_subject_one_line_says_so(self, capsys: pytest.CaptureFixture[str]) -> None:
        LESSON.explore("one", NOT_MODELLED)
        assert capsys.readouterr().out == f"{engine.NOT_HERE}\n"

    def test_all_states_are_known(self) -> None:
        assert list(KNOBS.states()) == [{"count": count, "loud": loud} for count in (1, 2, 4) for loud in (False, True)]


@pytest.fixture
def figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The published figures of lesson 06, in a folder of its own."""
    content = {
        "rate": {"value": 15, "text": "15 calls a second", "kind": "published", "source": "[1]"},
        "gain": {"value": 1.5, "text": "1.5 times", "kind": "derived", "source": "from the rates in [1]"},
    }
    folder = tmp_path / "lessons" / "pipelining"
    folder.mkdir(parents=True)
    (folder / "06_pipelining.py").write_text("# %% [markdown]\n# # Pipelining\n", encoding="utf-8")
    (folder / published.FILE_NAME).write_text(json.dumps(content), encoding="utf-8")
    find = lesson_folders.lesson_folder
    monkeypatch.setattr(lesson_module, "lesson_folder", lambda number: find(number, tmp_path / "lessons"))
    return content


class TestTakeaway:
    def test_a_caption_is_found_by_its_key(self, figures: dict[str, Any]) -> None:
        (LESSON.folder / takeaways.FILE_NAME).write_text('{"lost": "Every update is lost."}', encoding="utf-8")
        assert LESSON.takeaway("lost") == "Every update is lost."

    def test_a_longer_text_is_told_where_its_cell_runs(
        self, figures: dict[str, Any], capsys: pytest.CaptureFixture[str]
    ) -> None:
        (LESSON.folder / takeaways.FILE_NAME).write_text('{"why": "It is lost.\\n\\nFor good."}', encoding="utf-8")
        LESSON.tell("why")
        assert capsys.readouterr().out == "It is lost.\n\nFor good.\n"
        with pytest.raises(ValueError, match="has no caption 'how'"):
            LESSON.tell("how")

    def test_an_unknown_key_is_refused_with_the_nearest(self, tmp_path: Path) -> None:
        (tmp_path / takeaways.FILE_NAME).write_text('{"lost": "Every update is lost."}', encoding="utf-8")
        with pytest.raises(ValueError, match="has no caption 'last'; the nearest is 'lost'"):
            takeaways.takeaway_of(tmp_path, "last")

    def test_a_lesson_without_captions_has_none(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="has no caption 'lost'; the nearest is 'none at all'"):
            takeaways.takeaway_of(tmp_path, "lost")

    @pytest.mark.parametrize("content", ["[1]", '{"lost": 3}', '{"lost": ""}', "{"])
    def test_a_file_that_is_no_table_of_texts_is_refused(self, content: str, tmp_path: Path) -> None:
        (tmp_path / takeaways.FILE_NAME).write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match=r"takeaways\.json"):
            takeaways.takeaway_of(tmp_path, "lost")


class TestPublished:
    def test_a_figure_is_found_by_its_key(self, figures: dict[str, Any]) -> None:
        assert LESSON.published("rate").value == 15
        assert LESSON.published("gain").source == "from the rates in [1]"

    def test_an_unknown_key_is_refused_with_the_nearest(self, figures: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="has no figure 'rates'; the nearest is 'rate'"):
            LESSON.published("rates")

    def test_a_lesson_without_figures_has_none(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="has no figure 'rate'"):
            published.published_figure(tmp_path, "rate")

    @pytest.mark.parametrize(
        "damage", [{"kind": "guessed"}, {"colour": "blue"}], ids=["another kind", "an unknown entry"]
    )
    def test_a_file_that_breaks_a_rule_is_refused(self, damage: dict[str, str], tmp_path: Path) -> None:
        entry = {"value": 1, "text": "1", "kind": "published", "source": "[1]", **damage}
        (tmp_path / published.FILE_NAME).write_text(json.dumps({"rate": entry}), encoding="utf-8")
        with pytest.raises(ValueError, match=r"published\.json: "):
            published.published_figures(tmp_path)

    @pytest.mark.parametrize(
        ("key", "line"),
        [("rate", "  published: 15 calls a second [1]"), ("gain", "  derived: 1.5 times from the rates in [1]")],
    )
    def test_a_reveal_names_its_kind_and_source(
        self, key: str, line: str, figures: dict[str, Any], capsys: pytest.CaptureFixture[str]
    ) -> None:
        LESSON.predict("calls a second", 12).reveal(16, "modelled", published=key)
        assert capsys.readouterr().out.splitlines()[-1] == line


class TestWaiting:
    @pytest.fixture(autouse=True)
    def waiting(self) -> Any:
        wait_for_guesses()
        yield
        wait_for_guesses(False)

    def test_without_a_guess_nothing_is_given_away(
        self, figures: dict[str, Any], capsys: pytest.CaptureFixture[str]
    ) -> None:
        LESSON.predict("calls a second", ...).reveal(16, "modelled", published="rate")
        out = capsys.readouterr().out
        assert "waits for your guess" in out
        assert "With None in place of ..." in out
        assert "16" not in out
        assert "15" not in out

    def test_none_shows_the_result_without_a_guess(self, capsys: pytest.CaptureFixture[str]) -> None:
        LESSON.predict("steps", None).reveal(16)
        assert capsys.readouterr().out.splitlines() == ["steps", "  your guess: none", "  computed: 16"]
        assert not read_progress().predictions

    def test_a_guess_shows_it_too(self, capsys: pytest.CaptureFixture[str]) -> None:
        LESSON.predict("steps", 8).reveal(16)
        assert "  computed: 16" in capsys.readouterr().out

    def test_text_in_place_of_a_number_goes_on_waiting(self, capsys: pytest.CaptureFixture[str]) -> None:
        LESSON.predict("steps", "8").reveal(16)
        out = capsys.readouterr().out
        assert "A guess is a number, such as 12 or 0.5; you wrote '8'." in out
        assert "16" not in out
