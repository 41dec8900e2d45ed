"""What an explorer shows in each state, as the page's script reads it."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Mapping, Sequence

from matplotlib import pyplot
from PIL import Image

from ipu_course import show
from ipu_course.explorers import Choice, Control, Explorer, Slider, Switch, View
from ipu_course.figures.shown import SHOWN_PIXELS_AN_INCH, png

MOST_STATES = 240
COLOURS = 64  # the pictures are flat areas and lines, so a palette loses nothing that anyone can see


@dataclass(frozen=True)
class RecordedControl:
    """One control: its ``kind`` (slider, choice or switch), label, values as learners read them, and first place."""

    kind: str
    label: str
    words: Sequence[str]
    first: int


@dataclass(frozen=True)
class RecordedState:
    """The view of one setting: file name and width of the picture, its words, and the HTML below it."""

    picture: str
    width: int
    description: str
    takeaway: str
    below: str


@dataclass(frozen=True)
class RecordedExplorer:
    """An explorer with all states by the places of its controls' values, such as "0-3-1".

    ``left_out`` tells that the notebook offers more values than the page.
    """

    controls: Sequence[RecordedControl]
    states: Mapping[str, RecordedState]
    left_out: bool

    @property
    def first(self) -> str:
        """The key of the state that the page begins with."""
        return "-".join(str(control.first) for control in self.controls)

    def write(self, file: Path) -> None:
        """Write the explorer as JSON."""
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")


def read_explorer(file: Path) -> RecordedExplorer:
    """Return the explorer that ``write`` put into ``file``."""
    content = json.loads(file.read_text(encoding="utf-8"))
    return RecordedExplorer(
        controls=[RecordedControl(**each) for each in content["controls"]],
        states={key: RecordedState(**each) for key, each in content["states"].items()},
        left_out=content["left_out"],
    )


def record(explorer: Explorer, subjects: Sequence[object], folder: Path, most: int = MOST_STATES) -> RecordedExplorer:
    """Draw every state of an ``explorer`` into ``folder``, and return them.

    Where there are more than ``most`` states, the controls keep only some of their values (see ``thinned``).
    """
    folder.mkdir(parents=True, exist_ok=True)
    kept = thinned([list(control.values) for control in explorer.controls.values()], _firsts(explorer), most)
    states = {}
    for key, values in settings(kept):
        view = _view(explorer, subjects, dict(zip(explorer.controls, values)))
        states[key] = _recorded(view, folder, key)
        pyplot.close("all")
    controls = [_control(control, values) for control, values in zip(explorer.controls.values(), kept)]
    recorded = RecordedExplorer(controls, states, _count(kept) < len(list(explorer.states())))
    recorded.write(folder / "explorer.json")
    return recorded


def settings(kept: Sequence[Sequence[Any]]) -> list[tuple[str, tuple[Any, ...]]]:
    """Return the key and the values of every combination of the controls' values."""
    combined: list[tuple[str, tuple[Any, ...]]] = [("", ())]
    for values in kept:
        combined = [
            (f"{key}-{place}" if key else str(place), (*before, value))
            for key, before in combined
            for place, value in enumerate(values)
        ]
    return combined


def thinned(values: Sequence[list[Any]], firsts: Sequence[Any], most: int) -> list[list[Any]]:
    """Return fewer values for each control, so that there are at most ``most`` combinations.

    Takes every other value from the control that has the most, again and again. The first view's value stays, and so
    do both ends as long as a control has more than two values.
    """
    kept = [list(each) for each in values]
    while _count(kept) > most and max(map(len, kept)) > 1:
        longest = max(range(len(kept)), key=lambda place: len(kept[place]))
        kept[longest] = _every_other(kept[longest], firsts[longest])
    return kept


def _every_other(values: list[Any], first: Any) -> list[Any]:
    if len(values) == 2:
        return [first]
    last = len(values) - 1
    chosen = {*range(0, last, 2), last}
    if values.index(first) not in chosen:
        chosen.add(values.index(first))
    if len(chosen) == len(values):  # such as 3 values whose first view is the middle one
        chosen = {0, values.index(first)} if values.index(first) else {0, last}
    return [values[place] for place in sorted(chosen)]


def _count(values: Sequence[Sequence[Any]]) -> int:
    count = 1
    for each in values:
        count *= len(each)
    return count


def _firsts(explorer: Explorer) -> list[Any]:
    return [control.default for control in explorer.controls.values()]


def _view(explorer: Explorer, subjects: Sequence[object], setting: Mapping[str, Any]) -> View:
    try:
        return explorer.view(*subjects, **setting)
    except Exception as problem:  # as in the notebook: a setting without a view says why
        return View(text=f"There is no picture for this setting: {problem}")


def _recorded(view: View, folder: Path, key: str) -> RecordedState:
    below = show.table_html(view.rows) if view.rows else ""
    if view.text:
        below += f"<p>{show.escaped(view.text)}</p>"
    if view.figure is None:
        return RecordedState("", 0, "", "", below)
    name = f"{key}.png"
    (folder / name).write_bytes(small_png(png(view.figure)))
    width = round(SHOWN_PIXELS_AN_INCH * view.figure.get_figwidth())
    return RecordedState(name, width, view.description, view.takeaway, below)


def small_png(content: bytes) -> bytes:
    """Return a PNG with a palette of few colours."""
    with Image.open(io.BytesIO(content)) as image:
        flat = Image.new("RGB", image.size, "white")
        flat.paste(image, mask=image.getchannel("A") if image.mode == "RGBA" else None)
        buffer = io.BytesIO()
        flat.quantize(COLOURS, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _control(control: Control, values: Sequence[Any]) -> RecordedControl:
    first = list(values).index(control.default)
    if isinstance(control, Switch):
        return RecordedControl("switch", control.label, ("off", "on"), first)
    if isinstance(control, Slider):
        words = [f"{each:,}" if isinstance(each, (int, float)) else str(each) for each in values]
        return RecordedControl("slider", control.label, words, first)
    return RecordedControl("choice", control.label, _choice_words(control, values), first)


def _choice_words(control: Choice, values: Sequence[Any]) -> list[str]:
    by_value = [(value, words) for words, value in control.options.items()]
    return [next(words for value, words in by_value if value == each) for each in values]
