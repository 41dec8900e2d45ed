"""An explorer: controls, and a view of their values that is renewed in place.

The view of the first values is an ordinary output of the cell, so that it is there on paper and wherever no widget
manager is. Moving a control replaces that output.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Callable, Iterator, Mapping, Sequence

import ipywidgets
from matplotlib.figure import Figure

from ipu_course import show
from ipu_course.explorers.controls import Control
from ipu_course.figures.shown import caption, display_raw, picture


@dataclass(frozen=True)
class View:
    """What an explorer shows for one setting of its controls.

    ``takeaway`` is the caption, ``description`` the alternative text with the numbers, ``rows`` a table. ``figure``
    may be missing where the setting is impossible; ``text`` then says why.
    """

    figure: Figure | None = None
    takeaway: str = ""
    description: str = ""
    rows: Sequence[Mapping[str, object]] = field(default_factory=tuple)
    text: str = ""


@dataclass(frozen=True)
class Explorer:
    """Controls by name, and the view of their values.

    ``view`` takes the subjects that the notebook passes, such as a modelled program, and the controls' values by name.
    """

    controls: Mapping[str, Control]
    view: Callable[..., View]

    def show(self, *subjects: object, **settings: Any) -> ShownExplorer:
        """Display the controls, and below them the view of their first values; ``settings`` replace defaults.

        Raises ``ValueError`` for a setting that the explorer does not have.
        """
        unknown = sorted(set(settings) - set(self.controls))
        if unknown:
            raise ValueError(f"the explorer has no control {unknown[0]!r}; it has {', '.join(self.controls)}")
        controls = {
            name: replace(control, default=settings.get(name, control.default))
            for name, control in self.controls.items()
        }
        return ShownExplorer(controls, partial(self.view, *subjects))

    def states(self) -> Iterator[dict[str, Any]]:
        """Yield every setting of all controls."""
        for values in itertools.product(*(control.values for control in self.controls.values())):
            yield dict(zip(self.controls, values))


class ShownExplorer:
    """The widgets and outputs of an explorer that is displayed."""

    def __init__(self, controls: Mapping[str, Control], view: Callable[..., View]) -> None:
        self._view = view
        self.widgets = {name: control.widget() for name, control in controls.items()}
        wrapped = ipywidgets.Layout(flex_flow="row wrap")
        display_raw(*_widget_output(ipywidgets.Box(list(self.widgets.values()), layout=wrapped)))
        self._handles = [display_raw(*output, display_id=True) for output in self._outputs()]
        for widget in self.widgets.values():
            widget.observe(self._renew, names="value")

    def settings(self) -> dict[str, Any]:
        """The controls' values."""
        return {name: widget.value for name, widget in self.widgets.items()}

    def _renew(self, _: object) -> None:
        for handle, (data, metadata) in zip(self._handles, self._outputs()):
            handle.update(data, metadata=metadata, raw=True)

    def _outputs(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Picture, caption and table, always in this order and always three."""
        view = self._viewed()
        if view.figure is None:
            drawn, words = _text(view.text), _text("")
        else:
            drawn, words = picture(view.figure, view.description), _caption(view)
        rows = show.table_html(view.rows) or "<p></p>"
        below = f"{rows}<p>{show.escaped(view.text)}</p>" if view.text and view.figure is not None else rows
        plain = "\n".join(part for part in (show.table_text(view.rows), view.text) if part)
        return [drawn, words, ({"text/html": below, "text/plain": plain}, {})]

    def _viewed(self) -> View:
        """The view of the current settings; a fault in it becomes a text, so that the controls go on working."""
        try:
            return self._view(**self.settings())
        except Exception as problem:  # whatever a view raises, the learner can still move the control back
            return View(text=f"There is no picture for this setting: {problem}")


def explore(controls: Mapping[str, Control], view: Callable[..., View]) -> None:
    """Show ``controls`` and what ``view`` makes of their values, given by their names."""
    Explorer(controls, view).show()


def _caption(view: View) -> tuple[dict[str, Any], dict[str, Any]]:
    return show.caption(view.takeaway) if view.takeaway else caption(view.description)


def _text(words: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"text/html": f"<p>{show.escaped(words)}</p>", "text/plain": words}, {}


def _widget_output(widget: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The widget as an output whose text does not depend on versions or model numbers."""
    words = "Controls: run this cell to move them."
    view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    return {"application/vnd.jupyter.widget-view+json": view, "text/plain": words}, {}
