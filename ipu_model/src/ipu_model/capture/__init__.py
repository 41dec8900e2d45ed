"""Tracing: a module's forward and backward become one `ipu_model.graph.Graph`."""

from ipu_model.capture.step import capture
from ipu_model.capture.trace import Placer, Trace

__all__ = ["Placer", "Trace", "capture"]
