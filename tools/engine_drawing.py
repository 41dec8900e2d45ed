"""The drawing of the engine's packages and of what passes between them, and the same in words, for docs/engine.md."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ipu_course.figures.board import LARGE, SMALL, Place, arrow, box, sheet, write
from ipu_course.figures.looks import COMPARED, HOST, Look
from ipu_course.figures.style import SLATE, in_style

_toml: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

FILE = Path(__file__).with_suffix(".toml")
BLOCK = re.compile(r"(?<=<!-- drawing -->\n)(?:.*\n)*?(?=<!-- end of drawing -->\n)")
PICTURE_NAME = "engine.png"
SHORT = "The packages of the engine and what passes between them; the list below says the same in words"
LOOKS: Mapping[str, Look] = {"program": HOST, "package": COMPARED[0], "data": COMPARED[2]}
FRAME = Look("#FAFAFA", edge=SLATE)
TITLE_BELOW_TOP, LINE_HEIGHT = 0.22, 0.2


@dataclass(frozen=True)
class Part:
    """A box of the drawing; ``path`` is the part's code below ipu_model/src, if it has any of its own."""

    name: str
    kind: str
    lines: Sequence[str]
    place: Place
    does: str
    path: str = ""


@dataclass(frozen=True)
class Flow:
    """An arrow from one part to another."""

    source: str
    target: str
    begin: tuple[float, float]
    end: tuple[float, float]
    label: str = ""
    label_at: tuple[float, float] = (0.0, 0.0)
    both_ways: bool = False


@dataclass(frozen=True)
class EngineDrawing:
    """Everything that the drawing shows, and its size in inches."""

    height: float
    frame_title: str
    frame: Place
    parts: Sequence[Part]
    flows: Sequence[Flow]


def read_drawing(file: Path = FILE) -> EngineDrawing:
    """Return the drawing that ``file`` describes."""
    content = _toml.loads(file.read_text(encoding="utf-8"))
    parts = [Part(**dict(each, place=Place(*each["place"]))) for each in content["part"]]
    flows = [_flow(dict(each)) for each in content["arrow"]]
    frame = content["frame"]
    return EngineDrawing(content["height"], frame["title"], Place(*frame["place"]), parts, flows)


def _flow(entry: dict[str, Any]) -> Flow:
    for point in {"begin", "end", "label_at"} & set(entry):
        entry[point] = tuple(entry[point])
    return Flow(entry.pop("from"), entry.pop("to"), **entry)


def draw(drawing: EngineDrawing) -> Figure:
    """Draw it in the style of the course's figures."""
    with in_style():
        figure, axes = sheet(drawing.height)
        box(axes, drawing.frame, FRAME, round_by=0.12)
        corner = (drawing.frame.x + 0.22, drawing.frame.y + drawing.frame.height - 0.24)
        write(axes, corner, drawing.frame_title, ha="left", fontsize=LARGE, fontweight="bold")
        for part in drawing.parts:
            _draw_part(axes, part)
        for flow in drawing.flows:
            arrow(axes, flow.begin, flow.end, arrowstyle="<|-|>" if flow.both_ways else "-|>")
            if flow.label:
                write(axes, flow.label_at, flow.label, ha="left", fontsize=SMALL, style="italic")
    return figure


def _draw_part(axes: Axes, part: Part) -> None:
    look = LOOKS[part.kind]
    box(axes, part.place, look, round_by=0.15 if part.kind == "data" else 0.0)
    middle, top = part.place.middle[0], part.place.y + part.place.height
    write(axes, (middle, top - TITLE_BELOW_TOP), part.name, color=look.text, fontweight="bold")
    for number, line in enumerate(part.lines, start=1):
        write(
            axes, (middle, top - TITLE_BELOW_TOP - LINE_HEIGHT * number - 0.03), line, color=look.text, fontsize=SMALL
        )


def words(drawing: EngineDrawing) -> str:
    """Return the drawing as a Markdown list: each part, where its code is, what it does and where its arrows lead."""
    return "".join(_in_words(part, drawing.flows) for part in drawing.parts)


def _in_words(part: Part, flows: Sequence[Flow]) -> str:
    path = f" (`{part.path}`)" if part.path else ""
    targets = [flow.target for flow in flows if flow.source == part.name]
    targets += [flow.source for flow in flows if flow.target == part.name and flow.both_ways]
    leads = f" {'Arrows lead' if targets[1:] else 'An arrow leads'} to {_joined(targets)}." if targets else ""
    return f"* **{part.name}**{path}: {part.does}{leads}\n"


def _joined(names: Sequence[str]) -> str:
    bold = [f"**{name}**" for name in names]
    return " and ".join(filter(None, [", ".join(bold[:-1]), bold[-1]]))


def with_drawing(page: str, drawing: EngineDrawing) -> str:
    """Return the text of docs/engine.md with the picture and its words in their block.

    Raises:
        ValueError: the page has no such block, or several.
    """
    if len(BLOCK.findall(page)) != 1:
        raise ValueError("the page needs one block between <!-- drawing --> and <!-- end of drawing -->")
    return BLOCK.sub(lambda _: f"\n![{SHORT}]({PICTURE_NAME})\n\n{words(drawing)}\n", page)
