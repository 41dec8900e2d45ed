"""What a learner has answered so far: predictions, exercises, scores, quizzes and the ladder, in one local file.

Nothing here raises or prints: a lesson runs the same on a full disk. Nothing leaves the machine.
"""

from ipu_course.progress.notes import note_check, note_prediction, note_quiz, note_rung, note_score, read_progress
from ipu_course.progress.record import ExerciseRecord, PredictionRecord, Progress, QuizAnswer, Rung, Score

__all__ = [
    "ExerciseRecord",
    "PredictionRecord",
    "Progress",
    "QuizAnswer",
    "Rung",
    "Score",
    "note_check",
    "note_prediction",
    "note_quiz",
    "note_rung",
    "note_score",
    "read_progress",
]
