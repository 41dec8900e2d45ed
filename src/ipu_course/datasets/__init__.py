"""The data sets of the lessons: held in memory, normalised, safe to hand to loader worker processes."""

from __future__ import annotations

from ipu_course.datasets.colour_images import ColourImages, colour_shapes
from ipu_course.datasets.digits import mnist
from ipu_course.datasets.images import ImageDataset
from ipu_course.errors import DataError

__all__ = ["ColourImages", "DataError", "ImageDataset", "colour_shapes", "mnist"]
