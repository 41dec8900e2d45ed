"""What needs the project's public address is left out while there is none, and appears when one is set."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from address_blocks import BLOCKS, Block, binder_link, filled, written
from project_address import project_address

ON_GITHUB = "https://github.com/owner/course"
ELSEWHERE = "https://git.example/group/owner/course"


@pytest.fixture(scope="module")
def without() -> dict[str, str]:
    return written("")


def test_every_file_reads_as_the_setting_says(project: Path) -> None:
    """`make docs` writes them."""
    assert written(project_address()) == {
        block.file: (project / block.file).read_text(encoding="utf-8") for block in BLOCKS
    }


def test_without_an_address_no_link_to_a_host_of_the_project_is_left(without: dict[str, str]) -> None:
    text = "\n".join(without.values())
    assert "mybinder.org" not in text
    assert "badge.svg" not in text
    assert "security/advisories" not in text
    assert "repository-code" not in yaml.safe_load(without["CITATION.cff"])
    assert "contact_links" not in yaml.safe_load(without[".github/ISSUE_TEMPLATE/config.yml"])


@pytest.mark.parametrize("file", ["SECURITY.md", "CODE_OF_CONDUCT.md"])
def test_without_an_address_the_pages_say_whom_to_turn_to(file: str, without: dict[str, str]) -> None:
    assert "The project has no public address yet" in without[file]


@pytest.mark.parametrize("address", [ON_GITHUB, ELSEWHERE])
def test_with_an_address_every_place_names_it(address: str) -> None:
    texts = written(address)
    assert yaml.safe_load(texts["CITATION.cff"])["repository-code"] == address
    (link,) = yaml.safe_load(texts[".github/ISSUE_TEMPLATE/config.yml"])["contact_links"]
    assert link["url"].startswith(address)
    assert "https://mybinder.org/v2/" in texts["README.md"]
    for file in ("SECURITY.md", "CODE_OF_CONDUCT.md"):
        assert address in texts[file]
        assert "no public address yet" not in texts[file]


def test_what_only_github_has_is_shown_there_only() -> None:
    there, elsewhere = written(ON_GITHUB), written(ELSEWHERE)
    assert f"{ON_GITHUB}/actions/workflows/tests.yml/badge.svg" in there["README.md"]
    assert "badge.svg" not in elsewhere["README.md"]
    assert f"<{ON_GITHUB}/security/advisories/new>" in there["SECURITY.md"]
    assert "advisories" not in elsewhere["SECURITY.md"]
    assert f"[1.0.0]: {ON_GITHUB}/releases/tag/v1.0.0" in there["CHANGELOG.md"]


def test_the_workflow_that_the_badge_shows_exists(project: Path) -> None:
    assert (project / ".github" / "workflows" / "tests.yml").exists()


def test_taking_the_address_away_gives_the_files_back(without: dict[str, str]) -> None:
    texts = written(ON_GITHUB)
    for block in BLOCKS:
        texts[block.file] = filled(texts[block.file], block, "")
    assert texts == without


@pytest.mark.parametrize(
    ("address", "repository"),
    [
        (ON_GITHUB, "gh/owner/course"),
        ("https://gitlab.com/owner/course", "gl/owner/course"),
        (ELSEWHERE, "git/https%3A%2F%2Fgit.example%2Fgroup%2Fowner%2Fcourse"),
    ],
)
def test_binder_is_told_the_repository_in_its_hosts_way(address: str, repository: str) -> None:
    assert binder_link(address).startswith(f"https://mybinder.org/v2/{repository}/HEAD?")


@pytest.mark.parametrize(
    "text", ["no block\n", "# address: x\n# end of address: x\n# address: x\n# end of address: x\n"]
)
def test_a_file_without_its_block_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="needs one block 'address: x'"):
        filled(text, Block("file", "x", str), "")
