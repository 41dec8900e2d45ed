"""The explorers of a notebook that has run: every control is moved, and what it changes is watched."""

from __future__ import annotations

from dataclasses import dataclass

from notebook_page import PANEL, NotebookFailed, NotebookPage
from playwright.sync_api import Locator
from widget_controls import Control, controls_in

CELLS = f"{PANEL} .jp-CodeCell:has(.jp-OutputArea-output > .jupyter-widgets)"
# What stands beside the controls in the cell's output: words, and pictures as their data.
DRAWN = """cell => [...cell.querySelectorAll('.jp-OutputArea-output')]
    .filter(output => !output.querySelector('.jupyter-widgets'))
    .map(output => output.innerText + [...output.querySelectorAll('img')].map(image => image.src).join())
    .join('\\n')"""
# An explorer says so when its view raises; JupyterLab has its outputs for errors and warnings.
FAULT = "There is no picture for this setting"
COMPLAINTS = ", ".join(f'[data-mime-type="application/vnd.jupyter.{kind}"]' for kind in ("error", "stderr"))
LOOK_MILLISECONDS, MOST_LOOKS = 200, 75


@dataclass(frozen=True)
class Explorer:
    """One cell with controls."""

    notebook: NotebookPage
    cell: Locator

    def controls(self) -> list[Control]:
        """Return the cell's controls."""
        return controls_in(self.cell.locator(".jp-OutputArea-output > .jupyter-widgets"))

    def move(self, control: Control, setting: str) -> bool:
        """Move a control and wait; tell whether anything else in the cell's output changed."""
        if control.setting() == setting:
            return False
        before, activity = self._settled(), self.notebook.server.last_activity()
        control.move(setting)
        for _ in range(MOST_LOOKS):
            if self.notebook.server.last_activity() != activity:
                break
            self.notebook.page.wait_for_timeout(LOOK_MILLISECONDS)
        now = self._settled()
        if FAULT in now or self.cell.locator(COMPLAINTS).count():
            raise NotebookFailed(f"{self.notebook.name}: {control.label!r} at {setting} leads to: {now[-2000:]}")
        return now != before

    def _drawn(self) -> str:
        return str(self.cell.evaluate(DRAWN))

    def _settled(self) -> str:
        """Return what is drawn once the kernel is idle and two looks see the same."""
        before, now = None, self._drawn()
        for _ in range(MOST_LOOKS):
            if now == before and self.notebook.server.kernels_are_idle():
                return now
            self.notebook.page.wait_for_timeout(LOOK_MILLISECONDS)
            before, now = now, self._drawn()
        raise NotebookFailed(f"{self.notebook.name}: an explorer does not come to rest")


def explorers(notebook: NotebookPage) -> list[Explorer]:
    """Return the cells of an executed notebook that show controls."""
    return [Explorer(notebook, cell) for cell in notebook.page.locator(CELLS).all()]


def move_everything(explorer: Explorer) -> list[str]:
    """Move each control to its extremes and back, then all of them together; return the labels of those moved.

    Raises NotebookFailed where a control changes nothing, or where a setting leads to an error.
    """
    controls = explorer.controls()
    first_settings = [control.setting() for control in controls]
    for control, first in zip(controls, first_settings, strict=True):
        changes = [explorer.move(control, setting) for setting in [*control.extremes(), first]]
        if not any(changes):
            raise NotebookFailed(f"{explorer.notebook.name}: {control.label!r} changes nothing")
    for end in (0, -1):
        for control in controls:
            explorer.move(control, control.extremes()[end])
    for control, first in zip(controls, first_settings, strict=True):
        explorer.move(control, first)
    return [control.label for control in controls]
