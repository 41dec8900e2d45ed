"""Runs a notebook in a clean kernel, as a learner's front end would."""

from __future__ import annotations

import os
from pathlib import Path

from nbclient import NotebookClient
from nbformat import NotebookNode

from notebook_build.assemble import METADATA

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
TIMEOUT = 600


def execute(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """Run all cells with `folder` as the working directory, and return the notebook with its outputs.

    Raises nbclient's CellExecutionError where a cell raises.
    """
    client = NotebookClient(
        notebook,
        timeout=TIMEOUT,
        kernel_name=METADATA["kernelspec"]["name"],
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        store_widget_state=False,
        coalesce_streams=True,
    )
    # A backend chosen in the shell would keep figures out of the notebook.
    client.execute(env={name: value for name, value in os.environ.items() if name != "MPLBACKEND"})
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            # A view without its state shows as an error; what remains is the text of the widget.
            output.get("data", {}).pop(WIDGET_VIEW, None)
    notebook.metadata = NotebookNode(METADATA)
    return notebook
