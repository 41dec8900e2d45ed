"""Exercises as data: what a learner fills in, which answers are right, and which hint each wrong one gets."""

from __future__ import annotations

import ast
import dis
import inspect
import math
import numbers
import textwrap
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from decimal import Decimal
from traceback import walk_tb
from types import FunctionType
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Sequence, Union

from ipu_course.not_modelled import NOT_MODELLED

__all__ = [
    "Exercise",
    "Number",
    "Numbers",
    "Points",
    "Verdict",
    "as_number",
    "judge",
    "letting_errors_through",
    "open_parts",
]

NOT_ATTEMPTED = "not attempted yet"
CHECK_FAILED = "The check could not use your answer"
NEEDS_THE_MODEL = "this check needs the IPU Model, which is not installed here"

FindHint = Callable[..., Union[str, None]]
"""A function of the answers, in the order of their names, that returns a hint, or ``None`` when all are right."""

_letting_errors_through: ContextVar[bool] = ContextVar("_letting_errors_through", default=False)


@contextmanager
def letting_errors_through() -> Iterator[None]:
    """Let checks raise their errors instead of turning them into hints, which tests need."""
    before = _letting_errors_through.set(True)
    try:
        yield
    finally:
        _letting_errors_through.reset(before)


class Points(NamedTuple):
    """The score of a right answer, such as ``Points(56.5, "ms a call", "lower")``; ``better`` is lower or higher."""

    value: float
    unit: str
    better: str


@dataclass(frozen=True)
class Exercise:
    """One exercise: the ``names`` that a learner fills in, and how to judge the answers.

    ``find_hint`` takes the answers in this order, and ``using`` by keyword where the notebook passes it. ``score``
    takes the same, is called for right answers only, and returns their score, or ``None``.
    """

    names: Sequence[str]
    find_hint: FindHint
    praise: str
    score: Callable[..., Points | None] | None = None


@dataclass(frozen=True)
class Number:
    """A number to find: ``wrong`` maps values that a known misunderstanding gives to its hint.

    ``tolerance`` is absolute and in the number's unit; rounding in the last digits is always accepted. It holds for
    wrong values, too, as learners round those in the same way; where it covers two of them, the nearer one counts.
    ``otherwise`` is the hint for all other values. Raises ``ValueError`` for a wrong value that counts as right.
    """

    name: str
    value: float
    wrong: Mapping[float, str] = field(default_factory=dict)
    otherwise: str = "Check each factor and its unit."
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        right = [value for value in self.wrong if self._is(value, self.value)]
        if right:
            raise ValueError(f"{self.name}: the wrong value {right[0]} counts as right (tolerance {self.tolerance})")

    def hint(self, answer: object) -> str | None:
        """Return the hint for ``answer``, or ``None`` when it is right."""
        number = as_number(answer)
        if number is None:
            return f"{self.name} is a number; you wrote {_shown(answer)}."
        if self._is(number, self.value):
            return None
        known = [value for value in self.wrong if self._is(number, value)]
        if known:
            return self.wrong[min(known, key=lambda value: abs(number - value))]
        if isinstance(self.value, int) and not self.tolerance and math.isfinite(number) and number % 1:
            return f"{self.name} is a whole number; you wrote {_shown(answer)}."
        return self.otherwise

    def _is(self, number: float, value: float) -> bool:
        return math.isclose(number, value, rel_tol=1e-9, abs_tol=self.tolerance)


class Numbers(Exercise):
    """An exercise whose answers are numbers; the first wrong one gets its hint."""

    def __init__(self, *wanted: Number, praise: str) -> None:
        def first_hint(*answers: object) -> str | None:
            hints = (number.hint(answer) for number, answer in zip(wanted, answers))
            return next((hint for hint in hints if hint is not None), None)

        super().__init__(tuple(number.name for number in wanted), first_hint, praise)


@dataclass(frozen=True)
class Verdict:
    """What a check says; ``correct`` is ``None`` where it could not judge."""

    text: str
    correct: bool | None = None
    points: Points | None = None


def judge(exercise: Exercise, answers: Sequence[object], using: object = None) -> Verdict:
    """Return the verdict on ``answers``; an answer that raises gets the error as its hint.

    Raises ``TypeError`` when there are more or fewer answers than the exercise has names.
    """
    if len(answers) != len(exercise.names):
        raise TypeError(f"the exercise asks for {', '.join(exercise.names)}; {len(answers)} answers were given")
    parts = [open_parts(name, answer) for name, answer in zip(exercise.names, answers)]
    if all(found == [name] for name, found in zip(exercise.names, parts)):
        return Verdict(NOT_ATTEMPTED)
    if any(parts):
        return Verdict(f"still to fill in: {', '.join(part for found in parts for part in found)}")
    if any(each is NOT_MODELLED for each in (*answers, using)):
        return Verdict(NEEDS_THE_MODEL)
    passed = {} if using is None else {"using": using}
    hint = _hint(exercise, answers, passed)
    if hint is not None:
        return Verdict(f"not yet. {hint}", False)
    points = None if exercise.score is None else exercise.score(*answers, **passed)
    score = "" if points is None else f" Your score: {points.value:,.4g} {points.unit} ({points.better} is better)."
    return Verdict(f"correct. {exercise.praise}{score}", True, points)


def _hint(exercise: Exercise, answers: Sequence[object], passed: Mapping[str, object]) -> str | None:
    try:
        return exercise.find_hint(*answers, **passed)
    except Exception as problem:  # a check never raises, whatever the learner's objects do
        said = f"{type(problem).__name__}: {problem}"
        line = _learners_line(problem, answers)
        if line is not None:
            return f"Your code raises {said} (line {line} of the cell)."
        if _letting_errors_through.get():
            raise
        return f"{CHECK_FAILED} ({said})."


def _learners_line(problem: Exception, answers: Sequence[object]) -> int | None:
    """Return the last line of the learner's own code on the way to the error, if there is one."""
    files = {function.__code__.co_filename for answer in answers for function in _functions(answer)}
    lines = [line for frame, line in walk_tb(problem.__traceback__) if frame.f_code.co_filename in files]
    return lines[-1] if lines else None


def as_number(answer: object) -> float | None:
    """Return an answer as a number, or ``None`` for anything else: text, a bool, NaN, several values.

    Whole numbers, floats, fractions and the scalars of numpy and torch are numbers.
    """
    scalar = getattr(answer, "item", None)
    try:
        plain = scalar() if callable(scalar) else answer
        if isinstance(plain, bool) or not isinstance(plain, (numbers.Real, Decimal)):
            return None
        number = float(plain)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError, RuntimeError):  # an array or a tensor of several values
        return None
    return None if math.isnan(number) else number


def open_parts(name: str, answer: object) -> list[str]:
    """Name the parts of an answer that are still ``...``: all of it, or some entries of a dict, list or tuple."""
    if _is_open(answer):
        return [name]
    if isinstance(answer, dict):
        parts = {f"{name}[{key!r}]": value for key, value in answer.items()}
    elif isinstance(answer, (list, tuple)):
        parts = {f"{name}[{index}]": value for index, value in enumerate(answer)}
    else:
        return []
    missing = [part for part, value in parts.items() if _is_open(value)]
    return [name] if missing and len(missing) == len(parts) else missing


def _is_open(answer: object) -> bool:
    return answer is ... or any(_has_dots(function) for function in _functions(answer)) or _is_empty_class(answer)


def _functions(answer: object) -> list[FunctionType]:
    """Return the functions that a learner wrote for this answer: the answer itself, or the methods of a class."""
    if isinstance(answer, FunctionType):
        return [answer]
    if isinstance(answer, type):
        members = (getattr(member, "__func__", member) for member in vars(answer).values())
        return [member for member in members if isinstance(member, FunctionType)]
    return []


def _is_empty_class(answer: object) -> bool:
    """Tell whether a class was written without a body; those of libraries are never empty."""
    written = {"__module__", "__doc__", "__dict__", "__weakref__", "__qualname__", "__firstlineno__"}
    return isinstance(answer, type) and set(vars(answer)) <= written | {"__static_attributes__"}


def _has_dots(function: FunctionType) -> bool:
    """Tell whether ``...`` still stands for a statement or for a whole value in a function."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return _returns_nothing(function)
    statements = (node for node in ast.walk(tree) if isinstance(node, (ast.Expr, ast.Assign, ast.Return)))
    return any(isinstance(node.value, ast.Constant) and node.value.value is ... for node in statements)


def _returns_nothing(function: FunctionType) -> bool:
    """Tell the same without the source, from the bytecode: the function computes nothing."""
    computing = {"RESUME", "NOP", "LOAD_CONST", "LOAD_COMMON_CONSTANT", "RETURN_VALUE", "RETURN_CONST"}
    instructions = list(dis.get_instructions(function))
    loaded = [each.argval for each in instructions if each.opname in ("LOAD_CONST", "RETURN_CONST")]
    return {each.opname for each in instructions} <= computing and set(loaded) <= {None, ...}


def _shown(answer: Any) -> str:
    text = repr(answer)
    return text if len(text) <= 60 else f"{text[:57]}..."
