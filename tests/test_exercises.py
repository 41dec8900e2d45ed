"""Exercises: right answers in every spelling are accepted, wrong ones get their hint, and no answer raises."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ipu_course.exercises import Exercise, Number, Numbers, as_number, judge, letting_errors_through, open_parts
from ipu_course.not_modelled import NOT_MODELLED

BATCH = Number("global_batch", 12_800, wrong={51_200: "You counted the device iterations."}, otherwise="Multiply.")
RATE = Number(
    "rate", 0.0125, tolerance=1e-4, wrong={0.05: "That is the rate of the larger batch."}, otherwise="Divide."
)
PLAN = Numbers(BATCH, RATE, praise="Both follow from the replicas.")


def text(*answers: object, exercise: Exercise = PLAN) -> str:
    with letting_errors_through():
        return judge(exercise, answers).text


class TestNumbers:
    @pytest.mark.parametrize(
        "answer",
        [
            12_800,
            12_800.0,
            20 * 10 * 64,
            Fraction(12_800),
            Decimal("12800"),
            numpy.int64(12_800),
            numpy.float32(12_800),
            numpy.array(12_800),
            numpy.array([12_800]),
            torch.tensor(12_800),
            torch.tensor([12_800.0]),
            12_800 * (1 + 1e-12),  # the last digits of a product of floats
        ],
        ids=repr,
    )
    def test_every_spelling_of_the_right_number_is_right(self, answer: object) -> None:
        assert text(answer, 0.0125) == "correct. Both follow from the replicas."

    @pytest.mark.parametrize(
        "answer",
        ["12800", True, numpy.True_, torch.tensor(True), None, math.nan, [12_800], 12_800 + 0j, torch.ones(2), print],
        ids=repr,
    )
    def test_what_is_no_number_gets_a_hint_that_says_so(self, answer: object) -> None:
        assert text(answer, 0.0125).startswith("not yet. global_batch is a number; you wrote ")

    def test_a_known_misunderstanding_gets_its_own_hint_in_every_spelling(self) -> None:
        for answer in (51_200, 51_200.0, torch.tensor(51_200)):
            assert text(answer, 0.0125) == "not yet. You counted the device iterations."

    def test_any_other_number_gets_the_general_hint(self) -> None:
        assert text(-1, 0.0125) == text(10**400, 0.0125) == text(12_801, 0.0125) == "not yet. Multiply."

    def test_a_fraction_in_place_of_a_count_is_told_that_a_count_is_whole(self) -> None:
        assert text(12_800.5, 0.0125) == "not yet. global_batch is a whole number; you wrote 12800.5."

    @given(st.floats(allow_nan=False, allow_infinity=False))
    def test_the_tolerance_is_absolute(self, difference: float) -> None:
        # 0.9999 and 1.0001 leave room for the rounding of 0.0125 + difference.
        right = text(12_800, 0.0125 + difference).startswith("correct")
        if abs(difference) < 0.9999e-4:
            assert right
        if abs(difference) > 1.0001e-4:
            assert not right

    def test_the_tolerance_holds_for_known_misunderstandings_and_the_nearer_one_counts(self) -> None:
        gain = Number("gain", 3.1, tolerance=0.1, wrong={2.5: "Half is not idle.", 2.65: "Not ten steps."})
        assert gain.hint(2.45) == gain.hint(2.57) == "Half is not idle."
        assert gain.hint(2.58) == gain.hint(2.7) == "Not ten steps."
        assert gain.hint(2.2) == gain.otherwise

    def test_a_misunderstanding_that_would_count_as_right_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"gain: the wrong value 3\.05 counts as right \(tolerance 0\.1\)"):
            Number("gain", 3.1, tolerance=0.1, wrong={3.05: "You rounded too early."})

    def test_the_first_wrong_answer_gets_its_hint(self) -> None:
        assert text(51_200, 0.05) == "not yet. You counted the device iterations."
        assert text(12_800, 0.05) == "not yet. That is the rate of the larger batch."

    @given(st.one_of(st.none(), st.text(), st.floats(), st.integers(), st.complex_numbers(), st.lists(st.integers())))
    def test_no_answer_makes_the_check_raise(self, answer: object) -> None:
        assert text(answer, 0.0125).startswith(("not yet. ", "correct. "))

    def test_a_number_too_large_for_a_float_is_infinite(self) -> None:
        assert as_number(10**400) == math.inf
        assert as_number(2**53) == 2**53


class TestOpenAnswers:
    def test_an_exercise_with_no_answer_is_not_attempted(self) -> None:
        assert text(..., ...) == "not attempted yet"

    def test_a_missing_answer_is_named(self) -> None:
        assert text(12_800, ...) == "still to fill in: rate"

    def test_a_container_of_dots_is_open_and_a_partly_filled_one_says_where(self) -> None:
        assert open_parts("changes", {"A": ..., "B": ...}) == ["changes"]
        assert open_parts("changes", {"A": 1, "B": ...}) == ["changes['B']"]
        assert open_parts("cuts", [..., ...]) == ["cuts"]
        assert open_parts("cuts", (1, ..., 3)) == ["cuts[1]"]
        assert open_parts("cuts", [1, 2]) == open_parts("cuts", []) == []

    def test_a_container_that_is_one_of_several_answers_counts_as_one(self) -> None:
        two = Exercise(("number", "changes"), lambda number, changes: None, "Fine.")
        assert text(..., {"A": ...}, exercise=two) == "not attempted yet"
        assert text(1, {"A": 1, "B": ...}, exercise=two) == "still to fill in: changes['B']"


def with_dots(first: int, second: int = 2) -> int: ...


def with_docstring_and_dots() -> None:
    """Accumulate the gradients of all micro-batches."""
    ...  # noqa: PIE790  # what is tested


def with_a_gap() -> Any:
    total = ...
    for _ in range(3):
        pass
    return total


def that_returns_dots() -> Any:
    return ...


class Empty(torch.nn.Module): ...


class WithOpenMethod(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, images: torch.Tensor) -> Any: ...


def doubled(value: int) -> int:
    return 2 * value


def last_column(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[..., -1]


class Written(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images[..., 0]


OPEN = [with_dots, with_docstring_and_dots, with_a_gap, that_returns_dots, Empty, WithOpenMethod]
FILLED_IN = [doubled, last_column, Written, torch.nn.Linear, len]


class TestCode:
    """Starters of code exercises are functions and classes with dots in place of what is to be written."""

    @pytest.mark.parametrize("starter", OPEN)
    def test_a_starter_counts_as_open(self, starter: object) -> None:
        assert open_parts("answer", starter) == ["answer"]

    @pytest.mark.parametrize("answer", FILLED_IN)
    def test_code_that_was_written_does_not(self, answer: object) -> None:
        assert open_parts("answer", answer) == []

    @pytest.mark.parametrize(
        ("source", "is_open"),
        [
            ("def answer(a, b=1): ...", True),
            ('def answer():\n    """What it does."""\n    ...', True),
            ("def answer(): return ...", True),
            ("answer = lambda: ...", True),
            ("class answer: ...", True),
            ("class answer:\n    def forward(self): ...", True),
            ("def answer(a): return a", False),
            ("def answer(): return 3", False),
            ("def answer(a): return a[..., 0]", False),
        ],
    )
    def test_it_is_the_same_where_python_finds_no_source(self, source: str, is_open: bool) -> None:
        names: dict[str, Any] = {}
        exec(compile(source, "<no such file>", "exec"), names)
        assert open_parts("answer", names["answer"]) == (["answer"] if is_open else [])

    def test_a_method_of_any_kind_may_be_open(self) -> None:
        class Kinds:
            @staticmethod
            def one() -> int: ...

            @classmethod
            def other(cls) -> int:
                return 1

        assert open_parts("Kinds", Kinds) == ["Kinds"]


def calls(function: Any) -> str | None:
    return None if function(2) == 4 else f"function(2) gives {function(2)}, not 4."


DOUBLE = Exercise(("function",), calls, "Twice 2 is 4.")


def broken(function: object) -> str | None:
    raise ZeroDivisionError("no images")


class TestErrors:
    def test_an_error_in_the_check_is_a_hint_for_learners(self) -> None:
        verdict = judge(Exercise(("a",), broken, "Fine."), (1,))
        assert verdict.text == "not yet. The check could not use your answer (ZeroDivisionError: no images)."
        assert verdict.correct is False

    def test_and_a_failure_for_tests(self) -> None:
        with letting_errors_through(), pytest.raises(ZeroDivisionError):
            judge(Exercise(("a",), broken, "Fine."), (1,))

    def test_it_is_a_hint_again_afterwards(self) -> None:
        with letting_errors_through():
            pass
        assert "The check could not use" in judge(Exercise(("a",), broken, "Fine."), (1,)).text

    def test_an_error_in_the_learners_own_code_names_the_line_for_tests_too(self) -> None:
        names: dict[str, Any] = {}
        exec(compile("def function(value):\n    half = value / 0\n    return half", "<cell>", "exec"), names)
        assert text(names["function"], exercise=DOUBLE) == (
            "not yet. Your code raises ZeroDivisionError: division by zero (line 2 of the cell)."
        )

    def test_so_does_an_error_in_a_method_that_the_learner_wrote(self) -> None:
        names: dict[str, Any] = {}
        source = "class Twice:\n    def __init__(self, value):\n        raise KeyError('scale')"
        exec(compile(source, "<cell>", "exec"), names)
        assert "Your code raises KeyError: 'scale' (line 3 of the cell)." in text(names["Twice"], exercise=DOUBLE)

    def test_a_right_function_is_right_and_a_wrong_one_gets_the_hint(self) -> None:
        assert text(doubled, exercise=DOUBLE) == "correct. Twice 2 is 4."
        assert text(abs, exercise=DOUBLE) == "not yet. function(2) gives 2, not 4."


def fits_hint(size: object, using: Any = None) -> str | None:
    return None if size == using else f"It has {using}."


class TestUsing:
    EXERCISE = Exercise(("size",), fits_hint, "It fits.")

    def test_what_the_check_needs_besides_is_passed_on(self) -> None:
        assert judge(self.EXERCISE, (3,), using=3).correct
        assert judge(self.EXERCISE, (3,), using=4).text == "not yet. It has 4."
        assert judge(self.EXERCISE, (3,)).text == "not yet. It has None."

    @pytest.mark.parametrize(("answer", "using"), [(3, NOT_MODELLED), (NOT_MODELLED, 3)])
    def test_without_an_ipu_model_there_is_no_verdict(self, answer: object, using: object) -> None:
        verdict = judge(self.EXERCISE, (answer,), using)
        assert verdict.text == "this check needs the IPU Model, which is not installed here"
        assert verdict.correct is None

    def test_an_open_exercise_is_open_there_too(self) -> None:
        assert judge(self.EXERCISE, (...,), using=NOT_MODELLED).text == "not attempted yet"

    def test_another_number_of_answers_is_an_error_of_the_notebook(self) -> None:
        with pytest.raises(TypeError, match="asks for global_batch, rate; 1 answers were given"):
            judge(PLAN, (1,))
