"""A notebook in JupyterLab, handled as a learner does: open, Run All Cells, save, look."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
from lab_server import LabServer
from nbformat import NotebookNode
from nbformat.reader import NotJSONError
from playwright.sync_api import Page

PANEL = ".jp-NotebookPanel:not(.lm-mod-hidden)"
OPEN_MILLISECONDS = 120_000
RUN_SECONDS = 900
# An idle kernel and no new cell in as many looks, half a second or more each: it died, or a dialog is open.
LOOK_MILLISECONDS, LOOKS_BEFORE_GIVING_UP = 500, 40
SAVE_LOOK_MILLISECONDS, SAVE_LOOKS = 100, 50
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
WIDGET_FAILURES = ("Error displaying widget", "Error creating widget", "Loading widget...")


class NotebookFailed(AssertionError):
    """A notebook that did not run to its end in the browser."""


def read(path: Path) -> NotebookNode:
    """Read a notebook from its file."""
    notebook: NotebookNode = nbformat.read(path, as_version=4)
    return notebook


def clear_outputs(path: Path) -> None:
    """Empty a notebook of outputs and counts, so that whatever it holds later was made in the browser."""
    notebook = read(path)
    for cell in code_cells(notebook):
        cell.outputs, cell.execution_count = [], None
    nbformat.write(notebook, path)


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """Return a notebook's code cells."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook: NotebookNode) -> Iterator[NotebookNode]:
    """Yield the outputs of all cells."""
    for cell in code_cells(notebook):
        yield from cell.outputs


@dataclass(frozen=True)
class NotebookPage:
    """One open notebook; `name` is its file name in the server's folder."""

    page: Page
    server: LabServer
    name: str

    @property
    def path(self) -> Path:
        return self.server.folder / self.name

    def open(self) -> None:
        """Open the notebook and wait until its kernel takes requests from this page.

        JupyterLab shows a kernel as idle before it has asked for one, and drops what is run until then.
        """
        self.page.goto(self.server.notebook_url(self.name), timeout=OPEN_MILLISECONDS)
        deadline = time.monotonic() + OPEN_MILLISECONDS / 1_000
        while not any(kernel["connections"] for kernel in self.server.kernels()):
            if time.monotonic() > deadline:
                raise NotebookFailed(f"{self.name}: no kernel was started")
            self.page.wait_for_timeout(200)
        self.page.wait_for_selector(f'{PANEL} [data-status="idle"]', timeout=OPEN_MILLISECONDS)

    def run_all(self) -> NotebookNode:
        """Choose Run > Run All Cells, wait for the last cell, and return the saved notebook.

        Raises NotebookFailed with the cell's own error where one raises, and when the run comes to a halt.
        """
        self.page.locator(".lm-MenuBar-item", has_text="Run").first.click()
        self.page.locator(".lm-Menu-item", has_text="Run All Cells").first.click()
        deadline = time.monotonic() + RUN_SECONDS
        executed, looks = 0, 0
        while time.monotonic() < deadline and looks < LOOKS_BEFORE_GIVING_UP:
            self.page.wait_for_timeout(LOOK_MILLISECONDS)
            if not self.server.kernels_are_idle():
                looks = 0
                continue
            notebook = self.save()
            for failure in (output for output in outputs(notebook) if output.output_type == "error"):
                raise NotebookFailed(f"{self.name}: a cell raises {failure.ename}: {failure.evalue}")
            counts = [bool(cell.execution_count) for cell in code_cells(notebook)]
            if all(counts):
                return notebook
            looks = looks + 1 if sum(counts) == executed else 0
            executed = sum(counts)
        raise NotebookFailed(f"{self.name}: stopped after {executed} code cells")

    def save(self) -> NotebookNode:
        """Save with the keyboard and read the file back."""
        before = self.path.stat().st_mtime_ns
        self.page.keyboard.press("Control+s")
        for _ in range(SAVE_LOOKS):
            self.page.wait_for_timeout(SAVE_LOOK_MILLISECONDS)
            if self.path.stat().st_mtime_ns != before:
                # The server writes in place: a file that is not whole yet is read again.
                with contextlib.suppress(NotJSONError):
                    return read(self.path)
        return read(self.path)

    def cells_shown(self) -> int:
        """Return how many cells are in the page, seen or not: with a window on the notebook it would be fewer."""
        return self.page.locator(f"{PANEL} .jp-Notebook .jp-Cell:not(.jp-Cell-Placeholder)").count()

    def widgets_shown(self) -> int:
        """Return how many outputs show a live widget; NotebookFailed where one shows an error instead."""
        text = self.page.locator(PANEL).inner_text()
        for failure in WIDGET_FAILURES:
            if failure in text:
                raise NotebookFailed(f"{self.name}: an output says {failure!r}")
        return self.page.locator(".jp-OutputArea-output > .jupyter-widgets").count()


def opened(page: Page, server: LabServer, name: str) -> NotebookPage:
    """Open a notebook of the server's folder, without the outputs that it has."""
    notebook = NotebookPage(page, server, name)
    clear_outputs(notebook.path)
    notebook.open()
    return notebook


def widgets_expected(notebook: NotebookNode) -> int:
    """Return how many outputs of a saved notebook hold a widget."""
    return sum(WIDGET_VIEW in output.get("data", {}) for output in outputs(notebook))
