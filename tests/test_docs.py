"""The generated pages in docs/ say what the code says; `make docs` writes them anew."""

from __future__ import annotations

import re
from pathlib import Path

from ipu_model.validate.comparison import compare_rows
from ipu_model.validate.text import comparison_markdown
from poptorch._backend import support

ROOT = Path(__file__).resolve().parent.parent


def test_the_support_page_is_the_support_table() -> None:
    assert (ROOT / "docs" / "support.md").read_text(encoding="utf-8") == support.as_markdown()


def test_the_validation_page_is_what_the_model_says() -> None:
    assert (ROOT / "docs" / "validation.md").read_text(encoding="utf-8") == comparison_markdown(compare_rows())


def test_links_of_the_workshop_page_exist() -> None:
    page = ROOT / "docs" / "workshop.md"
    targets = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    assert targets
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_links_and_pictures_of_the_readme_exist() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target]
    assert local
    assert [target for target in local if not (ROOT / target).exists()] == []
