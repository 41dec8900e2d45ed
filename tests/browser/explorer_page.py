"""The explorers of a notebook that has run: every control is moved, and what it changes is watched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from notebook_page import PANEL, NotebookFailed, NotebookPage
from playwright.sync_api import Locator
from widget_controls import Control, controls_in

CELLS = f"{PANEL} .jp-CodeCell:has(.jp-OutputArea-output > .jupyter-widgets)"
# What stands beside the controls in the cell's output: words, and of each picture's data a sum, as it is long.
DRAWN = """cell => {
    const sum = text => {
        let found = text.length;
        for (let place = 0; place < text.length; place++) found = (31 * found + text.charCodeAt(place)) | 0;
        return found;
    };
    return [...cell.querySelectorAll('.jp-OutputArea-output')]
        .filter(output => !output.querySelector('.jupyter-widgets'))
        .map(output => output.innerText + [...output.querySelectorAll('img')].map(image => sum(image.src)).join())
        .join('\\n');
}"""
# An explorer says so when its view raises; JupyterLab has its outputs for errors and warnings.
FAULT = "There is no picture for this setting"
COMPLAINTS = ", ".join(f'[data-mime-type="application/vnd.jupyter.{kind}"]' for kind in ("error", "stderr"))
LOOK_MILLISECONDS, MOST_LOOKS, LOOKS_ALIKE = 50, 300, 4


@dataclass(frozen=True)
class Explorer:
    """One cell with controls."""

    notebook: NotebookPage
    cell: Locator

    def controls(self) -> list[Control]:
        """Return the cell's controls."""
        return controls_in(self.cell.locator(".jp-OutputArea-output > .jupyter-widgets"))

    def move(self, control: Control, setting: str) -> str:
        """Move a control, and return what the cell's output shows beside the controls then."""
        return self.move_all([control], [setting])

    def move_all(self, controls: Sequence[Control], settings: Sequence[str]) -> str:
        """Move several controls one after another without looking up, and return what is shown in the end."""
        activity = self.notebook.server.last_activity()
        moves = [(c, setting) for c, setting in zip(controls, settings, strict=True) if c.setting() != setting]
        for control, setting in moves:
            control.move(setting)
        for _ in range(MOST_LOOKS if moves else 0):
            if self.notebook.server.last_activity() != activity:
                break
            self.notebook.page.wait_for_timeout(LOOK_MILLISECONDS)
        now = self.settled()
        if FAULT in now or self.cell.locator(COMPLAINTS).count():
            where = ", ".join(f"{control.label!r} at {setting}" for control, setting in moves)
            raise NotebookFailed(f"{self.notebook.name}: {where} leads to: {now[-2000:]}")
        return now

    def _drawn(self) -> str:
        return str(self.cell.evaluate(DRAWN))

    def settled(self) -> str:
        """Return what is drawn once the kernel is idle and several looks in a row see the same, nothing going on."""
        looks: list[tuple[str, str]] = []
        for _ in range(MOST_LOOKS):
            idle, activity = self.notebook.server.idle_and_last_activity()
            looks.append((self._drawn(), activity))
            if idle and len(looks) >= LOOKS_ALIKE and len(set(looks[-LOOKS_ALIKE:])) == 1:
                return looks[-1][0]
            self.notebook.page.wait_for_timeout(LOOK_MILLISECONDS)
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
    seen = explorer.settled()
    for control, first in zip(controls, first_settings, strict=True):
        others = [setting for setting in control.extremes() if setting != first]
        shown = [seen, *(explorer.move(control, setting) for setting in [*others, first])]
        if len(set(shown)) == 1:
            raise NotebookFailed(f"{explorer.notebook.name}: {control.label!r} changes nothing")
        seen = shown[-1]
    for end in (0, -1):
        explorer.move_all(controls, [control.extremes()[end] for control in controls])
    explorer.move_all(controls, first_settings)
    return [control.label for control in controls]
