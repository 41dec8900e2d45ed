"""The generated pages in docs/ say what the code says; `make docs` writes them anew."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from poptorch._backend import support
from published.comparison import compare_rows
from published.text import comparison_markdown

ROOT = Path(__file__).resolve().parent.parent


def test_the_support_page_is_the_support_table() -> None:
    assert (ROOT / "docs" / "support.md").read_text(encoding="utf-8") == support.as_markdown()


def test_the_validation_page_is_what_the_model_says() -> None:
    assert (ROOT / "docs" / "validation.md").read_text(encoding="utf-8") == comparison_markdown(compare_rows())


@pytest.mark.parametrize("name", ["hosted_notebooks", "installing", "jupyterhub", "workshop"])
def test_links_of_the_pages_on_installing_and_teaching_exist(name: str) -> None:
    page = ROOT / "docs" / f"{name}.md"
    links = re.findall(r"\]\(([^)#]+?)(#[^)]*)?\)", page.read_text(encoding="utf-8"))
    local = [(target, anchor) for target, anchor in links if "://" not in target]
    assert local
    for target, anchor in local:
        assert (page.parent / target).exists(), target
        if anchor and target.endswith(".md"):
            assert anchor[1:] in anchors(page.parent / target), f"{target}{anchor}"


def anchors(page: Path) -> set[str]:
    """Return the anchors that the headings of a page have where it is shown."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_and_pictures_of_the_readme_exist() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target]
    assert local
    assert [target for target in local if not (ROOT / target).exists()] == []
