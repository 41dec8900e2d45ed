"""An explorer: controls, and a view of what they say, renewed in place.

The view of the defaults is an ordinary output of the cell, so it is there on paper and wherever no widget
manager is. Moving a control replaces that output.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Sequence

import ipywidgets
from matplotlib.figure import Figure

from ipu_course import show
from ipu_course.explorers.controls import Control
from ipu_course.figures.shown import caption, display_raw, picture


@dataclass(frozen=True)
class View:
    """What an explorer shows for one setting of its controls.

    ``figure`` may be missing where the setting is impossible; ``text`` then says why. ``rows`` are a table.
    """

    figure: Figure | None = None
    description: str = ""
    rows: Sequence[Mapping[str, object]] = field(default_factory=tuple)
    text: str = ""


@dataclass
class Explorer:
    """The widgets and outputs of one explorer."""

    controls: Mapping[str, Control]
    view: Callable[..., View]

    def show(self) -> None:
        """Display the controls, and below them the view of their defaults."""
        self.widgets = {name: control.widget() for name, control in self.controls.items()}
        wrapped = ipywidgets.Layout(flex_flow="row wrap")
        display_raw(*_widget_output(ipywidgets.Box(list(self.widgets.values()), layout=wrapped)))
        self.handles = [display_raw(*output, display_id=True) for output in self._outputs()]
        for widget in self.widgets.values():
            widget.observe(self._renew, names="value")

    def settings(self) -> dict[str, Any]:
        """The controls' values."""
        return {name: widget.value for name, widget in self.widgets.items()}

    def _renew(self, _: object) -> None:
        for handle, (data, metadata) in zip(self.handles, self._outputs()):
            handle.update(data, metadata=metadata, raw=True)

    def _outputs(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Picture, caption and table, always in this order and always three."""
        view = self._view()
        if view.figure is None:
            drawn, words = _text(view.text), _text("")
        else:
            drawn, words = picture(view.figure, view.description), caption(view.description)
        rows = show.table_html(view.rows) or "<p></p>"
        below = f"{rows}<p>{show.escaped(view.text)}</p>" if view.text and view.figure is not None else rows
        plain = "\n".join(part for part in (show.table_text(view.rows), view.text) if part)
        return [drawn, words, ({"text/html": below, "text/plain": plain}, {})]

    def _view(self) -> View:
        """The view of the current settings; a fault in it becomes a text, so that the knobs go on working."""
        try:
            return self.view(**self.settings())
        except Exception as problem:  # whatever a view raises, the learner can still turn the knob back
            return View(text=f"There is no picture for this setting: {problem}")


def explore(controls: Mapping[str, Control], view: Callable[..., View]) -> None:
    """Show ``controls`` and what ``view`` makes of their values, given by their names."""
    Explorer(controls, view).show()


def _text(words: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"text/html": f"<p>{show.escaped(words)}</p>", "text/plain": words}, {}


def _widget_output(widget: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The widget as an output whose text does not depend on versions or model numbers."""
    words = "Controls: run this cell to move them."
    view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    return {"application/vnd.jupyter.widget-view+json": view, "text/plain": words}, {}
