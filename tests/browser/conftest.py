"""Headless Chromium for the tests in this folder; they are skipped where there is none, and fail in CI."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_server import LabServer, running_lab
from playwright.sync_api import BrowserContext, Page, sync_playwright

from notebook_build.lesson import NOTEBOOKS

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def find_chromium() -> str:
    """Return a Chromium on the PATH; without one, skip the test, or fail it in CI."""
    for name in CHROMIUM_NAMES:
        if found := shutil.which(name):
            return found
    reason = "no Chromium on the PATH (Debian, Ubuntu: apt-get install chromium)"
    if os.environ.get("CI"):
        pytest.fail(f"{reason}, and CI must not skip the browser tests")
    pytest.skip(reason)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)


# Not for the whole session: while Playwright runs, its event loop blocks asyncio.run() in other tests.
@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserContext]:
    """A headless Chromium with an empty profile."""
    executable = find_chromium()
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("profile"),
            executable_path=executable,
            headless=True,
            args=FLAGS,
            viewport={"width": 1400, "height": 1000},
        )
        yield context
        context.close()


@pytest.fixture
def page(chromium: BrowserContext) -> Iterator[Page]:
    """A fresh page, closed when the test ends."""
    page = chromium.new_page()
    yield page
    page.close()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    """JupyterLab on a copy of the notebook folder, to which tests may add notebooks."""
    folder = tmp_path_factory.mktemp("lab") / "notebooks"
    shutil.copytree(NOTEBOOKS, folder, ignore=shutil.ignore_patterns(".*"))
    with running_lab(folder, tmp_path_factory.mktemp("home")) as server:
        yield server
        server.stop_kernels()


@pytest.fixture
def lab_page(lab: LabServer, page: Page) -> Iterator[Page]:
    """A fresh page; its test's kernels end before it closes, so that tests do not share the machine."""
    yield page
    lab.stop_kernels()


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for screenshots: IPU_COURSE_SCREENSHOTS, or else a temporary one."""
    wanted = os.environ.get("IPU_COURSE_SCREENSHOTS")
    if not wanted:
        return tmp_path_factory.mktemp("screenshots")
    folder = Path(wanted).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return folder
