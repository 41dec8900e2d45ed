"""The pages and settings for people who join: links resolve, commands exist, files of data have the form they need."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import ipu_course
from ipu_course.lesson_folders import lesson_folders

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md")),
    ROOT / ".github" / "pull_request_template.md",
    ROOT / "docs" / "licences.md",
    ROOT / "data" / "README.md",
    *sorted((ROOT / "docs" / "decisions").glob("*.md")),
]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted(set((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")) - {ROOT / ".github/ISSUE_TEMPLATE/config.yml"})
# What a reader makes who follows CONTRIBUTING.md.
TO_BE_MADE = ("src/ipu_course/lessons/counting_tiles/",)
PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]


def loaded(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def make_targets(text: str) -> set[str]:
    """Return the targets of `make` that a text calls, in code or at the start of a line."""
    return set(re.findall(r"(?:`|^|^\$ |run: )make ([a-z][a-z-]*)", text, re.MULTILINE))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as web hosts make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
class TestPages:
    def test_links_resolve(self, page: Path) -> None:
        links = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
        local = [link.partition("#") for link in links if "://" not in link]
        missing = [target for target, _, _ in local if target and not (page.parent / target).exists()]
        assert missing == []
        pages = [(page.parent / target if target else page, anchor) for target, _, anchor in local if anchor]
        assert [f"{other.name}#{anchor}" for other, anchor in pages if anchor not in anchors(other)] == []

    def test_the_makefile_has_every_target_that_is_named(self, page: Path) -> None:
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        named = make_targets(page.read_text(encoding="utf-8"))
        assert [target for target in sorted(named) if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


class TestDecisions:
    def test_each_has_its_parts_and_a_place_in_the_list(self) -> None:
        folder = ROOT / "docs" / "decisions"
        records = sorted(folder.glob("[0-9]*.md"))
        index = (folder / "README.md").read_text(encoding="utf-8")
        assert [record.name[:4] for record in records] == [f"{number:04}" for number in range(1, len(records) + 1)]
        for record in records:
            text = record.read_text(encoding="utf-8")
            assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"], record.name
            title = re.match(rf"# {int(record.name[:4])}\. (.+)\n", text)
            assert title is not None, record.name
            assert f"[{title[1]}]({record.name})" in index

    def test_files_that_they_name_exist(self) -> None:
        pattern = re.compile(r"`((?:src|ipu_model|tools|tests|docs|data|notebooks)/[\w./-]+)`")
        for page in PAGES:
            named = pattern.findall(page.read_text(encoding="utf-8"))
            missing = [name for name in named if not (ROOT / name).exists()]
            assert [name for name in missing if name not in TO_BE_MADE] == [], page.name


class TestHostedService:
    @pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
    def test_a_workflow_says_that_it_has_never_run_and_ends_by_itself(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        assert "it has never run on a hosted service" in " ".join(text.replace("#", " ").split())
        workflow = loaded(path)
        assert workflow["permissions"] == {"contents": "read"}
        assert all("timeout-minutes" in job for job in workflow["jobs"].values())

    @pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
    def test_its_commands_exist(self, path: Path) -> None:
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        steps = [step for job in loaded(path)["jobs"].values() for step in job["steps"]]
        commands = "\n".join(step["run"] for step in steps if "run" in step)
        targets = set(re.findall(r"^make ([a-z][a-z-]*)", commands, re.MULTILINE))
        assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []
        programs = set(re.findall(r"^ipu-course ([a-z]+)", commands, re.MULTILINE))
        assert [name for name in programs if not (ROOT / "src" / "ipu_course" / "programs" / name).is_dir()] == []
        files = re.findall(r"(?:^|\s)((?:\.ci|tools|docs)/[\w./-]+)", commands)
        assert [file for file in files if not (ROOT / file).exists()] == []

    def test_every_supported_python_is_tried(self) -> None:
        setup = (ROOT / "tools" / "setup.sh").read_text(encoding="utf-8")
        oldest, newest = (int(re.search(rf"^{word}=(\d+)", setup, re.MULTILINE)[1]) for word in ("oldest", "newest"))  # type: ignore[index]
        assert [f"3.{minor}" for minor in range(oldest, newest + 1)] == PYTHONS
        matrix = loaded(ROOT / ".github" / "workflows" / "tests.yml")["jobs"]["fast"]["strategy"]["matrix"]
        assert matrix["python"] == PYTHONS
        installed = loaded(ROOT / ".github" / "workflows" / "wheels.yml")["jobs"]["install"]["strategy"]["matrix"]
        assert installed["python"] == PYTHONS

    @pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
    def test_a_form_has_questions(self, path: Path) -> None:
        form = loaded(path)
        assert form["name"]
        assert form["description"]
        assert any(part.get("validations", {}).get("required") for part in form["body"])


def test_hooks_before_a_commit_fetch_nothing() -> None:
    (repository,) = loaded(ROOT / ".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    hooks = repository["hooks"]
    assert {hook["language"] for hook in hooks} == {"system"}
    lint = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\nlint:")[2].partition("\n\n")[0]
    for hook in hooks:
        tool = hook["entry"].removeprefix(".venv/bin/python -m ").split()[0]
        assert f"-m {tool}" in lint


def test_the_citation_names_the_version_of_the_changelog_and_the_licence() -> None:
    citation = loaded(ROOT / "CITATION.cff")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## \[([\d.]+)\] - (unreleased|\d{4}-\d{2}-\d{2})$", changes, re.MULTILINE)
    assert newest is not None
    assert citation["version"] == newest[1] == ipu_course.__version__
    assert ("date-released" in citation) == (newest[2] != "unreleased")
    assert (ROOT / "LICENSE").read_text(encoding="utf-8").startswith(f"{citation['license']} License")


def test_the_changelog_names_every_lesson() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    part_one = re.search(r"^- Lessons 00 to (\d\d) cover ", changes, re.MULTILINE)
    assert part_one is not None
    named = {f"{number:02}" for number in range(int(part_one[1]) + 1)} | set(re.findall(r"\((\d\d)\)", changes))
    assert {lesson.number for lesson in lesson_folders()} <= named


def test_every_kind_of_change_in_the_changelog_is_one_of_the_usual_ones() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    kinds = re.findall(r"^### (\w+)", changes, re.MULTILINE)
    assert kinds
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
