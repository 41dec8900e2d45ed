"""Numbers and verdicts in words."""

from __future__ import annotations

from ipu_course.progress import ExerciseRecord, PredictionRecord

NO_TIME = "does not fit"


def number(value: float) -> str:
    """Return a number as the lessons print it: whole ones with all digits, others with four."""
    size = abs(value)
    if size >= 1e15:
        return f"{value:.3e}"
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if size >= 10_000 else f"{value:,.4g}"


def as_shown(value: float) -> float:
    """Return a number rounded as ``number`` writes it."""
    return float(number(value).replace(",", ""))


def distance(prediction: PredictionRecord) -> str:
    """Say how far a guess is from its result."""
    if prediction.guess == prediction.result:
        return "exactly right"
    direction = "too low" if prediction.guess < prediction.result else "too high"
    factor = prediction.factor_off
    if factor is None:
        return direction
    if factor < 1.005:
        return f"{direction}, by less than 1 %"
    return f"{direction} by a factor of {factor:.3g}" if factor < 1000 else f"{direction} by a factor over 1,000"


def guesses(prediction: PredictionRecord) -> str:
    """Return the guess that counts, and those made later."""
    if not prediction.later_guesses:
        return number(prediction.guess)
    later = prediction.later_guesses[-3:]
    words = ", ".join(map(number, later))
    more = "… " if len(prediction.later_guesses) > len(later) else ""
    return f"{number(prediction.guess)} (later: {more}{words})"


def verdict(record: ExerciseRecord) -> str:
    """Say whether an exercise is solved."""
    return "not solved yet" if record.solved_at is None else f"solved at attempt {record.solved_at}"


def seconds(value: float | None) -> str:
    """Return the seconds of an epoch; a step without them does not fit into memory."""
    return NO_TIME if value is None else f"{value:.1f} s"


def visible(words: str) -> str:
    """Return ``words`` with the characters that no page may hold replaced by their codes."""
    return "".join(c if _is_allowed(c) else f"\\x{ord(c):02x}" for c in words)


def _is_allowed(character: str) -> bool:
    code = ord(character)
    return character in "\n\t" or not (
        code < 32 or 127 <= code < 160 or 0xD800 <= code < 0xE000 or code & 0xFFFE == 0xFFFE
    )
