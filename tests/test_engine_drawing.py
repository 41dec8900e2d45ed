"""The drawing of the engine: it shows every package once, its arrows begin and end at boxes, its words fit in them."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_drawing import EngineDrawing, Part, draw, read_drawing, with_drawing, words
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

ROOT = Path(__file__).resolve().parent.parent
CODE = ROOT / "ipu_model" / "src"
TOUCHES = 0.05
"""How far from a box an arrow may begin or end, in inches."""


@pytest.fixture(scope="module")
def drawing() -> EngineDrawing:
    return read_drawing()


def test_it_shows_every_package_of_the_engine_once(drawing: EngineDrawing) -> None:
    packages = [f"ipu_model/{file.parent.name}" for file in (CODE / "ipu_model").glob("*/__init__.py")]
    code = [folder for folder in packages if folder != "ipu_model/data"]
    shown = [part.path for part in drawing.parts if part.kind == "package" and part.path.startswith("ipu_model/")]
    assert sorted(path for path in shown if not path.endswith(".py")) == sorted(code)


def test_the_code_of_every_part_is_where_it_says(drawing: EngineDrawing) -> None:
    paths = [part.path for part in drawing.parts if part.path]
    assert paths
    assert [path for path in paths if not (CODE / path).exists()] == []


def test_every_arrow_leads_from_its_source_to_its_target(drawing: EngineDrawing) -> None:
    parts = {part.name: part for part in drawing.parts}
    assert len(parts) == len(drawing.parts)
    for flow in drawing.flows:
        assert touches(flow.begin, parts[flow.source]), flow
        assert touches(flow.end, parts[flow.target]), flow


def touches(point: tuple[float, float], part: Part) -> bool:
    """Tell whether a point is in a part's box, or next to it."""
    place = part.place
    return (place.x - TOUCHES <= point[0] <= place.x + place.width + TOUCHES) and (
        place.y - TOUCHES <= point[1] <= place.y + place.height + TOUCHES
    )


def test_the_words_of_a_box_stay_in_it(drawing: EngineDrawing) -> None:
    figure = draw(drawing)
    FigureCanvasAgg(figure)  # measures text
    boxes = {part.name: part.place for part in drawing.parts}
    texts = {text.get_text(): text for text in figure.findobj(Text) if text.get_text()}
    for part in drawing.parts:
        for line in (part.name, *part.lines):
            extent = texts[line].get_window_extent().transformed(figure.dpi_scale_trans.inverted())
            assert boxes[part.name].x < extent.x0, line
            assert extent.x1 < boxes[part.name].x + boxes[part.name].width, line


def test_the_words_name_every_part_and_every_arrow(drawing: EngineDrawing) -> None:
    lines = words(drawing).splitlines()
    assert len(lines) == len(drawing.parts)
    for part, line in zip(drawing.parts, lines, strict=True):
        assert line.startswith(f"* **{part.name}**")
        assert part.does in line
        assert all(f"**{flow.target}**" in line for flow in drawing.flows if flow.source == part.name)


def test_the_page_has_the_drawing_that_the_data_describe(drawing: EngineDrawing) -> None:
    page = (ROOT / "docs" / "engine.md").read_text(encoding="utf-8")
    assert with_drawing(page, drawing) == page


def test_a_page_without_the_block_is_an_error(drawing: EngineDrawing) -> None:
    with pytest.raises(ValueError, match="needs one block"):
        with_drawing("# Changing the engine\n", drawing)
