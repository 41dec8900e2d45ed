"""What a learner has answered so far: predictions, exercises, scores and more, in one local file.

Nothing here raises or prints: a lesson runs the same on a full disk. Nothing leaves the machine.
"""

from ipu_course.progress.notes import (
    note_budget,
    note_check,
    note_prediction,
    note_quiz,
    note_rung,
    note_score,
    read_progress,
)
from ipu_course.progress.record import BudgetUse, ExerciseRecord, PredictionRecord, Progress, QuizAnswer, Rung, Score

__all__ = [
    "BudgetUse",
    "ExerciseRecord",
    "PredictionRecord",
    "Progress",
    "QuizAnswer",
    "Rung",
    "Score",
    "note_budget",
    "note_check",
    "note_prediction",
    "note_quiz",
    "note_rung",
    "note_score",
    "read_progress",
]
