"""Records of a learner half-way through the course, for the tests of the report."""

from __future__ import annotations

from ipu_course.progress import ExerciseRecord, PredictionRecord, Progress, Rung

HALF_WAY = Progress(
    predictions=(
        PredictionRecord("01", "seconds an epoch in half precision", 120, 52.6, "modelled", "52 s, hands-on day 03"),
        PredictionRecord("01", "bytes on the fullest tile", 400_000, 787_456, "modelled", None, (700_000.0,)),
        PredictionRecord("02", "utilisation with 8 micro-batches", 0.8, 0.8, "computed"),
        PredictionRecord("03", "milliseconds of a call", 3, 2711, "measured"),
    ),
    exercises=(
        ExerciseRecord("01", "Exercise 1", attempts=2, solved_at=2),
        ExerciseRecord("02", "Exercise 2", attempts=3),
    ),
    rungs=(
        Rung("02", "gradient accumulation 8", 46.9, 46.2),
        Rung("01", "base, 32-bit", None, None),
        Rung("01", "half precision", 52.6, 52.4),
    ),
)
