"""The controls of an explorer, each with a label, its possible values and its widget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Sequence, Union

import ipywidgets

_WIDE = {"description_width": "initial"}
_LAYOUT = {"width": "auto", "min_width": "22rem"}


@dataclass(frozen=True)
class Slider:
    """A slider over ``values``, such as (1, 2, 4, 8); ``default`` is one of them."""

    label: str
    values: Sequence[Any]
    default: Any

    def __post_init__(self) -> None:
        _check_default(self.label, self.values, self.default)

    def widget(self) -> Any:
        """Return the slider, which reports a value when you let it go."""
        return ipywidgets.SelectionSlider(
            options=[(f"{value:,}" if isinstance(value, (int, float)) else str(value), value) for value in self.values],
            value=self.default,
            description=self.label,
            continuous_update=False,
            style=_WIDE,
            layout=_LAYOUT,
        )


@dataclass(frozen=True)
class Choice:
    """A menu: ``options`` maps what a learner reads to values; ``default`` is one of the values."""

    label: str
    options: Mapping[str, Any]
    default: Any

    def __post_init__(self) -> None:
        _check_default(self.label, self.values, self.default)

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


def _check_default(label: str, values: Sequence[Any], default: Any) -> None:
    if None in values:
        raise ValueError(f"{label}: None cannot be a value, as ipywidgets shows it as nothing chosen; use 0 or a text")
    if default not in values:
        raise ValueError(f"{label}: the default {default!r} is none of its values {list(values)!r}")
