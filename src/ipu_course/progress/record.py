"""The record of a learner's answers, and the rules by which a new answer joins it."""

# Without `from __future__ import annotations`: the file's codec reads these types, on Python 3.8 too.
import math
from dataclasses import dataclass, replace
from typing import Any, Dict, Iterable, Optional, Tuple, Union


@dataclass(frozen=True)
class PredictionRecord:
    """One quantity that the learner guessed before it was shown.

    ``guess`` and ``result`` are those of the first time, in the unit that ``quantity`` names. ``source`` says what
    kind of result it is (modelled, computed, measured); ``compared_with`` is the published or
    derived figure that was shown beside it, with its kind and source.
    ``later_guesses`` were made after the result had been seen.
    """

    lesson: str
    quantity: str
    guess: float
    result: float
    source: str
    compared_with: Optional[str] = None
    later_guesses: Tuple[float, ...] = ()

    @property
    def key(self) -> Tuple[str, str]:
        """What only entries for the same quantity have in common."""
        return self.lesson, self.quantity

    @property
    def factor_off(self) -> Optional[float]:
        """How many times the larger of guess and result is the smaller, or ``None`` where no ratio exists."""
        if self.guess == self.result:
            return 1.0
        smaller, larger = sorted((abs(self.guess), abs(self.result)))
        if smaller == 0 or (self.guess < 0) != (self.result < 0):
            return None
        factor = larger / smaller
        return factor if math.isfinite(factor) else None

    def followed_by(self, new: "PredictionRecord") -> "PredictionRecord":
        """Keep the first guess and its result; another guess later is only listed after it."""
        latest = (self.guess, *self.later_guesses)[-1]
        if new.guess == latest:
            return self  # the same cell, run again
        return replace(self, later_guesses=(*self.later_guesses, new.guess))


@dataclass(frozen=True)
class ExerciseRecord:
    """One exercise that the learner tried: ``attempts`` in all; ``solved_at`` is the number of the first right one."""

    lesson: str
    exercise: str
    attempts: int
    solved_at: Optional[int] = None

    def __post_init__(self) -> None:
        if not 1 <= (self.attempts if self.solved_at is None else self.solved_at) <= self.attempts:
            raise ValueError(f"an exercise cannot be solved at attempt {self.solved_at} of {self.attempts}")

    @property
    def key(self) -> Tuple[str, str]:
        """What only entries for the same exercise have in common."""
        return self.lesson, self.exercise

    @property
    def correct(self) -> bool:
        """Whether any attempt was right: a wrong one afterwards takes nothing away."""
        return self.solved_at is not None

    def followed_by(self, new: "ExerciseRecord") -> "ExerciseRecord":
        """Count the attempts together: once solved, an exercise stays solved."""
        later = None if new.solved_at is None else self.attempts + new.solved_at
        solved_at = later if self.solved_at is None else self.solved_at
        return replace(self, attempts=self.attempts + new.attempts, solved_at=solved_at)


@dataclass(frozen=True)
class Rung:
    """One step of the ladder: seconds an epoch as modelled for this learner and as published."""

    lesson: str
    step: str
    modelled_epoch_seconds: Optional[float]
    published_epoch_seconds: Optional[float]

    @property
    def key(self) -> str:
        """What only entries for the same step have in common."""
        return self.step

    def followed_by(self, new: "Rung") -> "Rung":
        """Replace older seconds by newer ones, but keep them where there are none now (no engine)."""
        modelled, published = new.modelled_epoch_seconds, new.published_epoch_seconds
        return replace(
            self,
            modelled_epoch_seconds=self.modelled_epoch_seconds if modelled is None else modelled,
            published_epoch_seconds=self.published_epoch_seconds if published is None else published,
        )


@dataclass(frozen=True)
class Score:
    """The learner's best value at an exercise that keeps a score; ``better`` is "lower" or "higher"."""

    lesson: str
    exercise: str
    value: float
    unit: str
    better: str

    def __post_init__(self) -> None:
        if self.better not in ("lower", "higher"):
            raise ValueError(f"better is 'lower' or 'higher', not {self.better!r}")

    @property
    def key(self) -> Tuple[str, str]:
        """What only entries for the same exercise have in common."""
        return self.lesson, self.exercise

    def followed_by(self, new: "Score") -> "Score":
        """Keep the better one of two; a score of another kind replaces this one."""
        if (self.unit, self.better) != (new.unit, new.better):
            return new
        is_better = new.value < self.value if self.better == "lower" else new.value > self.value
        return new if is_better else self


@dataclass(frozen=True)
class QuizAnswer:
    """The letters that a learner chose for one question of a quiz, before the lessons and after them.

    ``before`` is the first answer given; ``after`` is the latest. Each is empty as long as there is none.
    """

    quiz: str
    question: str
    before: str = ""
    after: str = ""

    @property
    def key(self) -> Tuple[str, str]:
        """What only entries for the same question have in common."""
        return self.quiz, self.question

    def followed_by(self, new: "QuizAnswer") -> "QuizAnswer":
        """Keep what was chosen first before the lessons, as it is what the learner started from."""
        return replace(self, before=self.before or new.before, after=new.after or self.after)


@dataclass(frozen=True)
class BudgetUse:
    """How many budgets of one kind the learner began, and how many of their units, such as compilations, were used."""

    lesson: str
    budget: str
    begun: int
    used: int

    def __post_init__(self) -> None:
        if self.begun < 0 or self.used < 0:
            raise ValueError(f"nobody uses {self.used} of {self.begun} budgets")

    @property
    def key(self) -> Tuple[str, str]:
        """What only entries for the same kind of budget have in common."""
        return self.lesson, self.budget

    @property
    def renewals(self) -> int:
        """How often the learner began another budget."""
        return max(0, self.begun - 1)

    def followed_by(self, new: "BudgetUse") -> "BudgetUse":
        """Count budgets and what was used of them together."""
        return replace(self, begun=self.begun + new.begun, used=self.used + new.used)


Entry = Union[PredictionRecord, ExerciseRecord, Rung, Score, QuizAnswer, BudgetUse]


@dataclass(frozen=True)
class Progress:
    """All that a learner has answered, each kind in the order of the first time.

    ``problem`` is a sentence for the learner when the file could not be read or written, else ``None``.
    """

    predictions: Tuple[PredictionRecord, ...] = ()
    exercises: Tuple[ExerciseRecord, ...] = ()
    rungs: Tuple[Rung, ...] = ()
    scores: Tuple[Score, ...] = ()
    quiz_answers: Tuple[QuizAnswer, ...] = ()
    budgets: Tuple[BudgetUse, ...] = ()
    problem: Optional[str] = None

    @property
    def empty(self) -> bool:
        """Whether nothing has been answered yet."""
        kinds = (self.predictions, self.exercises, self.rungs, self.scores, self.quiz_answers, self.budgets)
        return not any(kinds)

    def with_entries(self, entries: Iterable[Entry]) -> "Progress":
        """Return the progress with new entries, each of which follows the earlier one with its key."""
        progress = self
        for new in entries:
            field = _FIELDS[type(new)]
            known: Dict[object, Any] = {each.key: each for each in getattr(progress, field)}
            known[new.key] = known[new.key].followed_by(new) if new.key in known else new
            change: Any = {field: tuple(known.values())}
            progress = replace(progress, **change)
        return progress


_FIELDS = {
    PredictionRecord: "predictions",
    ExerciseRecord: "exercises",
    Rung: "rungs",
    Score: "scores",
    QuizAnswer: "quiz_answers",
    BudgetUse: "budgets",
}
