"""An explorer: its default view is an ordinary output, which every control renews in place."""

from __future__ import annotations

from typing import Any

import pytest

from ipu_course import explorers, figures
from ipu_course.explorers import Choice, Explorer, Slider, Switch, View

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


class Handle:
    """A display handle that remembers what it was last told to show."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    def update(self, data: dict[str, Any], metadata: dict[str, Any], raw: bool) -> None:
        assert raw
        self.data = data


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Handle]:
    handles: list[Handle] = []

    def display_raw(data: dict[str, Any], metadata: dict[str, Any], **arguments: Any) -> Handle:
        handles.append(Handle(data))
        return handles[-1]

    monkeypatch.setattr(explorers, "display_raw", display_raw)
    return handles


def view(count: int, name: str, loud: bool) -> View:
    if count == 8:
        return View(text="Eight is refused: take 4.")
    if count == 2:
        raise RuntimeError("two is broken")
    drawn = figures.bars_figure([name], {"counted": [float(count)]}, "things", "Things")
    rows = [{"name": name, "count": count}]
    return View(drawn, "Counted things.", f"{count} of {name}.", rows, "LOUD" if loud else "")


def new() -> Explorer:
    controls = {
        "count": Slider("count", (1, 2, 4, 8), 4),
        "name": Choice("name", {"the letter a": "a", "the letter b": "b"}, "a"),
        "loud": Switch("loud"),
    }
    return Explorer(controls, view)


def test_the_controls_come_first_and_then_the_view_of_their_defaults(shown: list[Handle]) -> None:
    new().show()
    controls, drawing, words, table = (handle.data for handle in shown)
    assert set(controls) == {WIDGET_VIEW, "text/plain"}
    # The text that is compared between runs: no version, no number of a model.
    assert controls["text/plain"] == "Controls: run this cell to move them."
    assert drawing["image/png"].startswith(b"\x89PNG")
    assert words["text/markdown"] == "*Counted things.*"
    assert table["text/plain"].split() == ["name", "count", "a", "4"]
    assert '<th scope="col">count</th>' in table["text/html"]


def test_moving_a_control_renews_the_same_outputs(shown: list[Handle]) -> None:
    each = new().show()
    each.widgets["name"].value = "b"
    each.widgets["loud"].value = True
    assert len(shown) == 4
    assert shown[1].data["text/plain"] == "4 of b."
    assert shown[3].data["text/plain"].splitlines()[-1] == "LOUD"
    assert each.settings() == {"count": 4, "name": "b", "loud": True}


def test_an_impossible_setting_shows_why_and_a_broken_one_does_too(shown: list[Handle]) -> None:
    each = new().show()
    each.widgets["count"].value = 8
    assert "image/png" not in shown[1].data
    assert shown[1].data["text/plain"] == "Eight is refused: take 4."
    each.widgets["count"].value = 2
    assert shown[1].data["text/plain"] == "There is no picture for this setting: two is broken"
    each.widgets["count"].value = 1
    assert shown[1].data["image/png"].startswith(b"\x89PNG")


def test_text_is_escaped(shown: list[Handle]) -> None:
    Explorer({"count": Slider("count", (8,), 8)}, lambda count: View(text="<b>no</b>")).show()
    assert shown[1].data["text/html"] == "<p>&lt;b&gt;no&lt;/b&gt;</p>"


def test_a_value_that_widgets_show_as_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="None cannot be a value"):
        Choice("c", {"all": None, "one": 1}, None)


@pytest.mark.parametrize("make", [lambda: Slider("s", (1, 2), 3), lambda: Choice("c", {"one": 1}, "one")])
def test_a_default_that_is_no_setting_is_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="is none of its values"):
        make()
