"""Captures of the programs whose hardware measurements are published, for the tests of the performance model."""

from __future__ import annotations

from ipu_model.validate.programs import Classifier, begin_block, day03, mlperf_resnet50

__all__ = ["Classifier", "begin_block", "day03", "mlperf_resnet50"]
