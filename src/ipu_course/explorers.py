"""Explorers: controls to move, and a figure that follows them.

The view of the first values is an ordinary output of the cell, so that it is there on paper and wherever no widget
manager is. Moving a control replaces that output.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Callable, Iterator, Mapping, Sequence, Union

import ipywidgets
from matplotlib.figure import Figure

from ipu_course import show
from ipu_course.figures.shown import Output, caption, display_raw, picture

__all__ = ["Choice", "Control", "Explorer", "ShownExplorer", "Slider", "Switch", "View"]

_WIDE = {"description_width": "initial"}
_LAYOUT = {"width": "auto", "min_width": "22rem"}


@dataclass(frozen=True)
class Slider:
    """A slider over ``values``, such as (1, 2, 4, 8); ``default`` is one of them."""

    label: str
    values: Sequence[Any]
    default: Any

    def __post_init__(self) -> None:
        _check_default(self)

    def widget(self) -> Any:
        """Return the slider, which reports a value when you let it go."""
        options = [(f"{each:,}" if isinstance(each, (int, float)) else str(each), each) for each in self.values]
        return ipywidgets.SelectionSlider(
            options=options, value=self.default, description=self.label, continuous_update=False, style=_WIDE,
            layout=_LAYOUT,
        )  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """A menu: ``options`` maps what a learner reads to values; ``default`` is one of the values."""

    label: str
    options: Mapping[str, Any]
    default: Any

    def __post_init__(self) -> None:
        _check_default(self)

    @property
    def values(self) -> Sequence[Any]:
        """The values in the menu's order."""
        return list(self.options.values())

    def widget(self) -> Any:
        """Return the menu."""
        options = list(self.options.items())
        return ipywidgets.Dropdown(
            options=options, value=self.default, description=self.label, style=_WIDE, layout=_LAYOUT
        )


@dataclass(frozen=True)
class Switch:
    """A setting that is on or off."""

    label: str
    default: bool = False

    @property
    def values(self) -> Sequence[Any]:
        """Off and on."""
        return (False, True)

    def widget(self) -> Any:
        """Return the checkbox."""
        return ipywidgets.Checkbox(value=self.default, description=self.label, indent=False, layout=_LAYOUT)


Control = Union[Slider, Choice, Switch]


def _check_default(control: Slider | Choice) -> None:
    label, values, default = control.label, control.values, control.default
    if None in values:
        raise ValueError(f"{label}: None cannot be a value, as ipywidgets shows it as nothing chosen; use 0 or a text")
    if default not in values:
        raise ValueError(f"{label}: the default {default!r} is none of its values {list(values)!r}")


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
        return ShownExplorer(self.starting_with(settings).controls, partial(self.view, *subjects))

    def starting_with(self, settings: Mapping[str, Any]) -> Explorer:
        """Return this explorer with other first values. Raises ``ValueError`` for a control that it does not have."""
        unknown = sorted(set(settings) - set(self.controls))
        if unknown:
            raise ValueError(f"the explorer has no control {unknown[0]!r}; it has {', '.join(self.controls)}")
        controls = {
            name: replace(control, default=settings.get(name, control.default))
            for name, control in self.controls.items()
        }
        return replace(self, controls=controls)

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
        """Return the controls' values."""
        return {name: widget.value for name, widget in self.widgets.items()}

    def _renew(self, _: object) -> None:
        for handle, (data, metadata) in zip(self._handles, self._outputs()):
            handle.update(data, metadata=metadata, raw=True)

    def _outputs(self) -> list[Output]:
        """Return picture, caption and table, always in this order and always three."""
        view = self._viewed()
        if view.figure is None:
            drawn, words = _text(view.text), _text("")
        else:
            drawn, words = picture(view.figure, view.description), caption(view.takeaway)
        rows = show.table_html(view.rows) or "<p></p>"
        below = f"{rows}<p>{show.escaped(view.text)}</p>" if view.text and view.figure is not None else rows
        plain = "\n".join(part for part in (show.table_text(view.rows), view.text) if part)
        return [drawn, words, ({"text/html": below, "text/plain": plain}, {})]

    def _viewed(self) -> View:
        """Return the view of the current settings; a fault in it becomes a text, so that the controls still work."""
        try:
            return self._view(**self.settings())
        except Exception as problem:  # whatever a view raises, the learner can still move the control back
            return View(text=f"There is no picture for this setting: {problem}")


def _text(words: str) -> Output:
    return {"text/html": f"<p>{show.escaped(words)}</p>", "text/plain": words}, {}


def _widget_output(widget: Any) -> Output:
    """Return the widget as an output whose text does not depend on versions or model numbers."""
    words = "Controls: run this cell to move them."
    view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    return {"application/vnd.jupyter.widget-view+json": view, "text/plain": words}, {}
