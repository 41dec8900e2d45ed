"""The table of `make mutate`: every change still has its place, and the tests that are to notice it exist."""

from __future__ import annotations

from pathlib import Path

import mutate
import pytest
from mutate import Mutation, Verdict, change_of

MUTATIONS = mutate.read_mutations(mutate.TABLE.read_text(encoding="utf-8"))
EXAMPLE = Mutation("one and one are two", "Peano", "1 + 1", "1 - 1", ("tests/test_sum.py",))


def written(folder: Path, content: str) -> Path:
    """Write a file of sources below a folder."""
    path = folder / "src" / "sums" / "sum.py"
    path.parent.mkdir(parents=True)
    path.write_text(content, encoding="utf-8")
    return path


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder with the file that `EXAMPLE` changes."""
    written(tmp_path, "two = 1 + 1\n")
    return tmp_path


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.rule)
def test_a_change_has_one_place_and_is_one(mutation: Mutation, project: Path) -> None:
    change = change_of(mutation, project)
    assert change.content != (project / change.file).read_text(encoding="utf-8")
    compile(change.content, change.file, "exec")


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.rule)
def test_a_change_names_its_source_and_tests_that_exist(mutation: Mutation, project: Path) -> None:
    assert mutation.source
    assert mutation.tests
    assert [test for test in mutation.tests if not (project / test).is_file()] == []


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (0, Verdict.SURVIVED),
        (1, Verdict.CAUGHT),
        (2, Verdict.UNDECIDED),
        (5, Verdict.UNDECIDED),
        (-1, Verdict.UNDECIDED),
    ],
)
def test_only_tests_that_ran_and_failed_catch_a_change(code: int, verdict: Verdict, copy: Path) -> None:
    assert mutate.verdict_on(EXAMPLE, copy, lambda folder, tests: code) is verdict


def test_the_tests_see_the_change_and_nothing_after_them_does(copy: Path) -> None:
    seen = []
    path = copy / "src" / "sums" / "sum.py"

    def run(folder: Path, tests: object) -> int:
        seen.append((path.read_text(encoding="utf-8"), tests))
        return 1

    mutate.verdict_on(EXAMPLE, copy, run)
    assert seen == [("two = 1 - 1\n", EXAMPLE.tests)]
    assert path.read_text(encoding="utf-8") == "two = 1 + 1\n"


@pytest.mark.parametrize("content", ["two = 2\n", "two = 1 + 1\nfour = 1 + 1 + 1 + 1\n"])
def test_a_change_without_a_place_of_its_own_is_refused(content: str, tmp_path: Path) -> None:
    written(tmp_path, content)
    with pytest.raises(ValueError, match="must occur once"):
        change_of(EXAMPLE, tmp_path)


def changed(folder: Path, content: str, code: str, becomes: str, within: str = "") -> str:
    written(folder, content)
    return change_of(Mutation("a rule", "a book", code, becomes, (), within), folder).content


def test_layout_does_not_matter(tmp_path: Path) -> None:
    """Umlauts take two bytes each, and what stands before and after stays."""
    content = 'ä = "ü", max(\n    1,  # one\n    two,\n), 3\n'
    assert changed(tmp_path, content, "max(1, two)", "min(1, two)") == 'ä = "ü", min(1, two), 3\n'


def test_names_with_two_underscores_stand_for_any_expression(tmp_path: Path) -> None:
    content = "share = (a + b) * self.size.all / count\n"
    assert changed(tmp_path, content, "__whole / count", "__whole") == "share = ((a + b) * self.size.all)\n"


@pytest.mark.parametrize("within", ["Circle.area", "Circle", ""])
def test_a_function_narrows_the_search(within: str, tmp_path: Path) -> None:
    content = "class Circle:\n    def area(self): return 2 * r\n\n\nclass Square:\n    def area(self): return 2 * r\n"
    if within == "Circle.area":
        assert "def area(self): return 3 * r\n\n\nclass Square" in changed(tmp_path, content, "2 * r", "3 * r", within)
    else:
        with pytest.raises(ValueError, match="must occur once"):
            changed(tmp_path, content, "2 * r", "3 * r", within)


def test_an_entry_with_a_misspelt_key_is_refused() -> None:
    with pytest.raises(ValueError, match="become"):
        mutate.read_mutations('[[mutation]]\nrule = "a"\nbecome = "b"\n')


def test_nothing_is_run_for_a_rule_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert mutate.main(["no such rule"], run=lambda folder, tests: pytest.fail("ran tests")) == 1
    assert "No rule in mutations.toml contains 'no such rule'" in capsys.readouterr().out


class TestAllTogether:
    """With a stand-in for pytest: whether the run as a whole succeeds."""

    def test_it_succeeds_where_only_the_unchanged_sources_pass(self, capsys: pytest.CaptureFixture[str]) -> None:
        codes = iter([0, 1, 1])
        assert mutate.main(["half partials", "rounded"], run=lambda folder, tests: next(codes)) == 0
        assert capsys.readouterr().out.endswith("1 of 1 changes caught\n")

    def test_it_fails_where_a_change_survives(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert mutate.main(["half partials", "rounded"], run=lambda folder, tests: 0) == 1
        assert "SURVIVED  Half partials are rounded" in capsys.readouterr().out

    def test_it_fails_where_the_unchanged_sources_do(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert mutate.main(["half partials", "rounded"], run=lambda folder, tests: 1) == 1
        assert "fail on the unchanged sources already" in capsys.readouterr().out
