"""Tracing: a module's forward and backward become one `ipu_model.capture.graph.Graph`."""

from ipu_model.capture.micro_batch import capture as capture
