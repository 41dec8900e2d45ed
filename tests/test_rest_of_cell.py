"""After a result that waits for a guess, the rest of the cell shows nothing, and the next cell shows everything."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from IPython.core.interactiveshell import InteractiveShell

from ipu_course.lesson import wait_for_guesses

BEFORE = "from IPython.display import display; from ipu_course.lesson import Lesson; lesson = Lesson('00')"
REVEAL = "print('before'); lesson.predict('tiles', {guess}).reveal(1472); print('a table'); display('a figure')"


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    """A shell in which results wait for guesses, as in the learner's copy."""
    wait_for_guesses()
    shell = InteractiveShell.instance()
    shell.run_cell(BEFORE)
    yield shell
    InteractiveShell.clear_instance()
    wait_for_guesses(False)


def test_what_follows_a_result_that_waits_is_hidden_too(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run_cell(REVEAL.format(guess="..."))
    out = capsys.readouterr().out
    assert "before" in out
    assert "waits for your guess" in out
    assert "a table" not in out
    assert "a figure" not in out


def test_two_results_that_wait_in_one_cell_are_hidden_once(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run_cell(REVEAL.format(guess="...") + "; " + REVEAL.format(guess="..."))
    shell.run_cell("print('the next cell'); display('its figure')")
    out = capsys.readouterr().out
    assert out.count("waits for your guess") == 1
    assert "the next cell" in out
    assert "its figure" in out


def test_an_error_ends_the_hiding_and_is_shown(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_cell("lesson.predict('tiles', ...).reveal(1472); 1 / 0")
    shell.run_cell("print('the next cell')")
    out = capsys.readouterr().out
    assert "the next cell" in out


@pytest.mark.parametrize("guess", ["1000", "None"])
def test_with_a_guess_the_whole_cell_is_shown(
    guess: str, shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run_cell(REVEAL.format(guess=guess))
    out = capsys.readouterr().out
    assert "1,472" in out
    assert "a table" in out
    assert "a figure" in out
