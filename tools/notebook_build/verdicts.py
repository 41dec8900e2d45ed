"""What a trial must show: each answer gets the verdict it deserves, and each wrong one a hint of its own."""

from __future__ import annotations

from collections.abc import Iterator

from ipu_course.exercises import CHECK_FAILED
from notebook_build.assemble import exercises_of
from notebook_build.trial import HALF, RIGHT, SOLVED, STARTER, WRONG, Attempt, Trial, error_of
from notebook_build.wrong_answers import file_of, named

LEAST_WRONG_ANSWERS = LEAST_HINTS = 3
SHORTEST_EXCERPT = 8
# What every verdict of a form begins with (the starter's is all of it).
BEGINNINGS = {
    STARTER: "not attempted yet",
    HALF: "still to fill in: ",
    WRONG: "not yet. ",
    RIGHT: "correct. ",
    SOLVED: "correct. ",
}


def fault(attempt: Attempt) -> str | None:
    """Return what is wrong with the verdict on one attempt, or None."""
    said, beginning = attempt.verdict, BEGINNINGS[attempt.form]
    if attempt.error:
        return f"raises {attempt.error}"
    if not said.startswith(beginning) or (attempt.form == STARTER and said != beginning):
        return f"says {said!r} instead of {beginning!r}"
    if attempt.answer and attempt.answer.hint not in said:
        return f"is not met by {attempt.answer.hint!r}, but by {said!r}"
    if CHECK_FAILED in said:
        return f"makes the check itself fail: {said!r}"
    return None


def faults(trial: Trial) -> Iterator[str]:
    """Yield all that is wrong with a trial, one line each."""
    for attempt in trial.attempts:
        if found := fault(attempt):
            yield f"{attempt.name}: {found}"
    tried = {attempt.cell.id for attempt in trial.attempts}
    for cell in trial.notebook.cells:
        if cell.id not in tried and (error := error_of(cell)):
            yield f"the cell that begins {cell.source.splitlines()[0]!r} raises {error}"
    for exercise in exercises_of(trial.lesson):
        wrong = trial.of(exercise.number, WRONG)
        yield from (f"Exercise {exercise.number}: {found}" for found in corpus_faults(wrong, trial))


def corpus_faults(wrong: list[Attempt], trial: Trial) -> Iterator[str]:
    """Yield what is wrong with the wrong answers to one exercise as a set."""
    file = named(file_of(trial.lesson))
    if len(wrong) < LEAST_WRONG_ANSWERS:
        yield f"{len(wrong)} wrong answers in {file}, and at least {LEAST_WRONG_ANSWERS} are asked for"
    elif (hints := len({attempt.verdict for attempt in wrong})) < LEAST_HINTS:
        yield f"the wrong answers in {file} get {hints} different hints, and at least {LEAST_HINTS} are asked for"
    for attempt in wrong:
        hint = hint_of(attempt)
        if len(hint) < SHORTEST_EXCERPT:
            yield f"the excerpt {hint!r} is so short that it may be found anywhere"
        for other in wrong:
            if hint_of(other) != hint and hint in other.verdict:
                yield f"the excerpt {hint!r} does not tell {attempt.name!r} from {other.name!r}"


def hint_of(attempt: Attempt) -> str:
    """Return the excerpt that the hint for a wrong answer must hold."""
    return attempt.answer.hint if attempt.answer else ""


def table(trial: Trial) -> str:
    """Return a trial as a text table: an attempt a line, with what its check said."""
    width = max((len(attempt.name) for attempt in trial.attempts), default=0)
    lines = [trial.lesson.name]
    for attempt in trial.attempts:
        mark = "FAULT" if fault(attempt) else "ok   "
        lines.append(f"  {mark}  {attempt.name:{width}}  {attempt.error or attempt.verdict or '(nothing)'}")
    return "\n".join(lines)
