"""Runs a notebook in a clean kernel, as a learner's front end would."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from nbclient import NotebookClient
from nbformat import NotebookNode
from traitlets.config import Config
from zmq import ZMQError

from notebook_build.assemble import METADATA

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
TIMEOUT = 600


def execute(
    notebook: NotebookNode,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    *,
    allow_errors: bool = False,
) -> NotebookNode:
    """Run all cells with `folder` as the working directory, and return the notebook with its outputs.

    `environment` adds to the kernel's variables. Raises nbclient's CellExecutionError where a cell raises, unless
    errors are allowed: they are outputs then, and the run goes on.
    """
    try:
        _run(notebook, folder, environment, allow_errors)
    except ZMQError:
        # The connection to the kernel broke, which says nothing about the notebook: once more, in a new kernel.
        _run(notebook, folder, environment, allow_errors)
    for cell in notebook.cells:
        if "outputs" in cell:
            cell.outputs = with_neighbouring_prints_joined(cell.outputs)
        for output in cell.get("outputs", ()):
            # A view without its state shows as an error; what remains is the text of the widget.
            output.get("data", {}).pop(WIDGET_VIEW, None)
    notebook.metadata = NotebookNode(METADATA)
    return notebook


def with_neighbouring_prints_joined(outputs: Sequence[NotebookNode]) -> list[NotebookNode]:
    """Return a cell's outputs with prints in a row as one output, however the kernel cut them into messages."""
    joined: list[NotebookNode] = []
    for output in outputs:
        last = joined[-1] if joined else None
        if last is not None and output.output_type == last.output_type == "stream" and output.name == last.name:
            last.text += output.text
        else:
            joined.append(output)
    return joined


def _run(notebook: NotebookNode, folder: Path, environment: Mapping[str, str] | None, allow_errors: bool) -> None:
    """Run all cells in a kernel of their own; outputs go into the notebook."""
    with tempfile.TemporaryDirectory() as scratch:
        client = NotebookClient(
            notebook,
            timeout=TIMEOUT,
            kernel_name=METADATA["kernelspec"]["name"],
            resources={"metadata": {"path": str(folder)}},
            record_timing=False,
            store_widget_state=False,
            # nbclient would join all prints of a cell, and so put those after a figure in front of it.
            coalesce_streams=False,
            allow_errors=allow_errors,
            config=Config(KernelManager=connection(Path(scratch))),
        )
        client.execute(env={**kernel_environment(Path(scratch)), **(environment or {})})


def connection(scratch: Path) -> dict[str, str]:
    """Return how to reach the kernel: by files where the system can, as two runs at a time may want the same port."""
    if os.name != "posix":
        return {}
    return {"transport": "ipc", "connection_file": str(scratch / "kernel.json")}


def kernel_environment(scratch: Path) -> dict[str, str]:
    """Return this process's variables, but for what would show in a notebook or be changed by running it."""
    # A backend chosen in the shell would keep figures out of the notebook.
    kept = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    # The answers of whoever builds a lesson are not theirs as a learner.
    return {**kept, "IPU_COURSE_PROGRESS": str(scratch / "progress.json")}
