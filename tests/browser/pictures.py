"""Pictures of a notebook as a learner sees it, in the light and in the dark theme, without running it again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from notebook_page import PANEL, NotebookPage
from playwright.sync_api import Page

THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
WINDOW = {"width": 1280, "height": 1600}
SCROLLED = f"{PANEL} .jp-WindowedPanel-outer"
# Cells that scroll into view may take a moment to be drawn.
DRAW_MILLISECONDS = 300


def choose_theme(page: Page, theme: str) -> None:
    """Choose "light" or "dark", as Settings > Theme does."""
    name = THEMES[theme]
    page.evaluate("name => window.jupyterapp.commands.execute('apputils:change-theme', {theme: name})", name)
    page.wait_for_selector(f'body[data-jp-theme-name="{name}"]', state="attached", timeout=30_000)


def take_pictures(notebook: NotebookPage, folder: Path) -> Iterator[Path]:
    """Yield the pictures of both themes: every screenful if IPU_COURSE_SCREENSHOTS is set, or else only the last."""
    page, before = notebook.page, notebook.page.viewport_size
    page.set_viewport_size(WINDOW)  # type: ignore[arg-type]
    page.evaluate("window.jupyterapp.shell.collapseLeft()")
    for theme in THEMES:
        choose_theme(page, theme)
        for number in screenfuls(page, only_last="IPU_COURSE_SCREENSHOTS" not in os.environ):
            target = folder / f"{Path(notebook.name).stem}-{theme}-{number:02}.png"
            page.screenshot(path=target)
            yield target
    choose_theme(page, "light")
    if before:
        page.set_viewport_size(before)


def screenfuls(page: Page, only_last: bool) -> Iterator[int]:
    """Scroll through the notebook from its top, and yield the number of each screenful once it is drawn."""
    scrolled = page.locator(SCROLLED).first
    height, step = scrolled.evaluate("panel => [panel.scrollHeight, panel.clientHeight]")
    tops = list(range(0, max(height - step, 0) + step, step))
    for number, top in enumerate(tops, start=1):
        if not only_last or number == len(tops):
            scrolled.evaluate("(panel, top) => panel.scrollTo(0, top)", top)
            page.wait_for_timeout(DRAW_MILLISECONDS)
            yield number
