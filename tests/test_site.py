"""The site's pages: links, hidden results, and explorers whose views were recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course_site.explorer_html import LEFT_OUT, explorer_html
from course_site.lesson_page import lesson_page
from course_site.links import Links
from course_site.outline import read_outline
from course_site.page_checks import problems
from course_site.recorded import RecordedExplorer, read_explorer, record, settings, thinned
from course_site.source_tree import contents, reference_text
from ipu_course.explorers import Choice, Explorer, Slider, Switch, View

LINKS = Links(frozenset({"docs/model.md", "notebooks/02_sums.ipynb", "examples/README.md", "README.md"}))
HERE = Path("docs/errors.md")


class TestLinks:
    @pytest.mark.parametrize(
        ("written", "on_the_site"),
        [
            ("[the model](model.md)", "[the model](model.md)"),
            ("[sums](../notebooks/02_sums.ipynb#Add,-then-go)", "[sums](../notebooks/02_sums.ipynb#add-then-go)"),
            ("[programs](../examples)", "[programs](../examples/README.md)"),
            ("[start](../README.md#start)", "[start](../index.md)"),
            ("[there](https://docs.graphcore.ai/x)", "[there](https://docs.graphcore.ai/x)"),
            ("[above](#limits)", "[above](#limits)"),
            ("![a picture](picture.png)", "![a picture](picture.png)"),
            ("[the code](../src/a.py) and [the model](model.md)", "the code and [the model](model.md)"),
        ],
    )  # fmt: skip
    def test_a_link_leads_to_the_page_or_becomes_words(self, written: str, on_the_site: str) -> None:
        assert LINKS.rewritten(written, HERE) == on_the_site

    def test_a_file_that_is_no_page_is_linked_in_the_repository_when_its_address_is_known(self) -> None:
        links = Links(LINKS.pages, "https://example.org/owner/name")
        assert (
            links.rewritten("[code](../src/a.py)", HERE) == "[code](https://example.org/owner/name/blob/main/src/a.py)"
        )

    def test_examples_in_code_blocks_stay(self) -> None:
        text = "```\n[code](../src/a.py)\n```\n[code](../src/a.py)"
        assert LINKS.rewritten(text, HERE) == "```\n[code](../src/a.py)\n```\ncode"


class TestThinned:
    def test_few_values_all_stay(self) -> None:
        assert thinned([[1, 2, 3], ["a", "b"]], [1, "a"], 6) == [[1, 2, 3], ["a", "b"]]

    def test_the_longest_control_loses_every_other_value_but_keeps_its_ends_and_its_first_view(self) -> None:
        assert thinned([[1, 2, 3, 4, 5, 6, 7], ["a", "b"]], [4, "a"], 10) == [[1, 3, 4, 5, 7], ["a", "b"]]

    @pytest.mark.parametrize("most", [1, 2, 3, 7, 50, 999])
    def test_there_are_never_more_combinations_than_allowed(self, most: int) -> None:
        values = [list(range(9)), list(range(7)), [False, True]]
        kept = thinned(values, [4, 0, True], most)
        assert len(settings(kept)) <= most
        assert 4 in kept[0]
        assert 0 in kept[1]
        assert True in kept[2]


def view(base: int, factor: int, shape: str, squared: bool) -> View:
    """Show a product; the shape "none" has no picture, and "broken" raises."""
    if shape == "broken":
        raise ValueError("no such shape")
    if shape == "none":
        return View(text="There is nothing to draw.")
    value = (base * factor) ** (2 if squared else 1)
    return View(
        Figure(figsize=(2, 1)), f"The product is {value}.", f"A drawing of {value} & more.", [{"product": value}]
    )


EXPLORER = Explorer(
    {
        "factor": Slider("factor", (1, 2, 1000), 2),
        "shape": Choice("shape", {"a disc": "disc", "nothing": "none", "a fault": "broken"}, "disc"),
        "squared": Switch("squared"),
    },
    view,
)


@pytest.fixture
def recorded(tmp_path: Path) -> RecordedExplorer:
    return record(EXPLORER, (3,), tmp_path)


class TestRecord:
    def test_every_setting_has_a_view(self, recorded: RecordedExplorer, tmp_path: Path) -> None:
        assert len(recorded.states) == 3 * 3 * 2
        assert recorded.states["2-0-1"].takeaway == "The product is 9000000."
        assert (tmp_path / recorded.states["2-0-1"].picture).read_bytes().startswith(b"\x89PNG")
        assert not recorded.left_out

    def test_a_setting_without_a_picture_says_why(self, recorded: RecordedExplorer) -> None:
        assert recorded.states["0-1-0"].below == "<p>There is nothing to draw.</p>"
        assert "no such shape" in recorded.states["0-2-0"].below
        assert recorded.states["0-2-0"].picture == ""

    def test_the_page_begins_as_the_notebook_does(self, tmp_path: Path) -> None:
        assert record(EXPLORER.starting_with({"factor": 1000}), (3,), tmp_path).first == "2-0-0"

    def test_what_is_written_is_read_again(self, recorded: RecordedExplorer, tmp_path: Path) -> None:
        assert read_explorer(tmp_path / "explorer.json").states == recorded.states

    def test_values_that_are_left_out_are_noted(self, tmp_path: Path) -> None:
        few = record(EXPLORER, (3,), tmp_path, most=8)
        assert LEFT_OUT in explorer_html("02_sums/1", few)
        assert LEFT_OUT not in explorer_html("02_sums/1", record(EXPLORER, (3,), tmp_path))


class TestLessonPage:
    NOTEBOOK = new_notebook(
        cells=[
            new_markdown_cell("# Sums\n\nSee [the model](../docs/model.md)."),
            new_code_cell('saved.reveal(3, "modelled")', outputs=[new_output("stream", text="3")]),
            new_code_cell(
                "lesson.explore()\nprint(1)",
                outputs=[
                    new_output("display_data", data={"text/plain": words})
                    for words in ("Controls: run this cell to move them.", "picture", "caption", "table", "more")
                ],
            ),
        ]
    )

    def test_the_result_of_a_prediction_is_hidden(self) -> None:
        page = lesson_page(self.NOTEBOOK, Path("notebooks/02_sums.ipynb"), LINKS, {})
        assert page.cells[1].metadata["tags"] == ["hide-output"]
        assert "tags" not in self.NOTEBOOK.cells[1].metadata

    def test_the_explorer_takes_the_place_of_its_saved_view_only(self, recorded: RecordedExplorer) -> None:
        page = lesson_page(self.NOTEBOOK, Path("notebooks/02_sums.ipynb"), LINKS, {"1": recorded})
        first, second = page.cells[2].outputs
        assert 'data-explorer="02_sums/1"' in first.data["text/html"]
        assert second.data["text/plain"] == "more"


class TestOutline:
    def test_every_page_that_it_names_exists_and_is_in_the_contents(self) -> None:
        outline = read_outline(["notebooks/00_start_here.ipynb"])
        text = contents(outline)
        assert all(f"\n{page}\n" in text for page in [*outline.notebooks, *outline.documents])

    def test_a_missing_page_is_an_error(self, tmp_path: Path) -> None:
        file = tmp_path / "outline.toml"
        file.write_text('reference = []\n[[part]]\nheading = "A"\npages = ["docs/lost.md"]\n', encoding="utf-8")
        with pytest.raises(FileNotFoundError, match=r"docs/lost\.md"):
            read_outline([], file)

    def test_the_reference_names_each_module(self) -> None:
        (page, *_) = read_outline([]).reference
        assert all(f".. automodule:: {module}\n" in reference_text(page) for module in page.modules)


class TestPageChecks:
    GOOD = '<h1 id="top">Sums</h1><h2>Add</h2><p><a href="#top">up</a></p><h2>Subtract</h2>'

    def written(self, folder: Path, body: str) -> list[str]:
        (folder / "other.html").write_text(self.GOOD, encoding="utf-8")
        (folder / "sums.html").write_text(body, encoding="utf-8")
        return problems(folder)

    @pytest.mark.parametrize(
        "more",
        [
            "",
            '<a href="other.html#top">another page</a>',
            '<a href="https://docs.graphcore.ai/x">a link that loads nothing by itself</a>',
            '<img src="data:image/png;base64,AAAA">',
            "<h3>a third level below the second</h3>",
        ],
    )
    def test_a_sound_page_has_no_problems(self, tmp_path: Path, more: str) -> None:
        assert self.written(tmp_path, self.GOOD + more) == []

    @pytest.mark.parametrize(
        ("body", "problem"),
        [
            (GOOD + '<a href="lost.html">x</a>', "lost.html is not there"),
            (GOOD + '<img src="lost.png">', "lost.png is not there"),
            (GOOD + '<a href="#lost">x</a>', "#lost names an anchor that the page does not have"),
            (GOOD + '<a href="other.html#lost">x</a>', "other.html#lost names an anchor that the page does not have"),
            ("<h2>Add</h2>", "the page has 0 headings of level 1"),
            (GOOD + "<h1>Again</h1>", "the page has 2 headings of level 1"),
            (GOOD + "<h4>Deep</h4>", "the heading 'Deep' has level 4 after level 2"),
            (GOOD + '<p id="top">x</p>', "2 elements have the id 'top'"),
            (GOOD + '<script src="//example.org/a.js"></script>', "the page loads //example.org/a.js"),
            (GOOD + '<link rel="stylesheet" href="https://example.org/a.css">', "the page loads https://example.org/a.css"),
        ],
    )  # fmt: skip
    def test_each_fault_is_named_with_its_page(self, tmp_path: Path, body: str, problem: str) -> None:
        assert f"sums.html: {problem}" in self.written(tmp_path, body)

    def test_a_style_must_not_load_a_font_from_elsewhere(self, tmp_path: Path) -> None:
        (tmp_path / "a.css").write_text('@import "https://example.org/font.css"; p { background: url(here.png) }')
        assert problems(tmp_path) == ["a.css: the style loads https://example.org/font.css"]
