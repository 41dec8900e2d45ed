"""A short quiz at the start of each part of the course, and the same again at its end.

Before the lessons no answer is right or wrong. Afterwards you see what changed, what is right and why.
"""

from ipu_course.quiz.asking import after, before

__all__ = ["after", "before"]
