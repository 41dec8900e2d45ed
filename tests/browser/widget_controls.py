"""Controls of ipywidgets in the page, each moved the way a learner moves it: keys for sliders, clicks for the rest."""

from __future__ import annotations

from dataclasses import dataclass

from playwright.sync_api import Locator

MOST_STEPS = 200
# The label is inside the control or beside it; one that is not used holds a space of no width.
NEAREST_LABEL = """element => {
    for (let box = element; box; box = box.parentElement) {
        const labels = [...box.querySelectorAll('.widget-label, .widget-label-basic')];
        const words = labels.map(label => label.innerText.replace('\\u200b', '').trim()).filter(Boolean);
        if (words.length) return words[0];
    }
    return '';
}"""


@dataclass(frozen=True)
class Control:
    """One control; `element` takes the keys or clicks."""

    element: Locator

    @property
    def label(self) -> str:
        """The words beside the control."""
        return str(self.element.evaluate(NEAREST_LABEL))

    def setting(self) -> str:
        """Where it is now."""
        raise NotImplementedError

    def extremes(self) -> list[str]:
        """The settings to try: the ends of a scale, or every choice."""
        raise NotImplementedError

    def move(self, setting: str) -> None:
        """Move it to a setting."""
        raise NotImplementedError


class Slider(Control):
    """A handle that the keys move; a setting is its number as a screen reader is told it."""

    def setting(self) -> str:
        return self._number("now")

    def extremes(self) -> list[str]:
        return [self._number("min"), self._number("max")]

    def move(self, setting: str) -> None:
        self.element.press("End" if setting == self._number("max") else "Home")
        for _ in range(MOST_STEPS):
            if self.setting() == setting:
                return
            self.element.press("ArrowRight")
        raise AssertionError(f"the slider {self.label!r} does not reach {setting}")

    def _number(self, which: str) -> str:
        return self.element.get_attribute(f"aria-value{which}") or ""


class Menu(Control):
    """A drop-down menu; a setting is an option's text."""

    def setting(self) -> str:
        return str(self.element.evaluate("menu => menu.selectedOptions[0].text"))

    def extremes(self) -> list[str]:
        return [option.strip() for option in self.element.locator("option").all_text_contents()]

    def move(self, setting: str) -> None:
        self.element.select_option(label=setting)


class Box(Control):
    """A box to tick; a setting is "on" or "off"."""

    def setting(self) -> str:
        return "on" if self.element.is_checked() else "off"

    def extremes(self) -> list[str]:
        return ["on", "off"]

    def move(self, setting: str) -> None:
        self.element.set_checked(setting == "on")


class Toggles(Control):
    """A row of buttons of which one is pressed; a setting is a button's text."""

    def setting(self) -> str:
        return self.element.locator("button.mod-active").inner_text().strip()

    def extremes(self) -> list[str]:
        return [button.strip() for button in self.element.locator("button").all_inner_texts()]

    def move(self, setting: str) -> None:
        self.element.get_by_role("button", name=setting, exact=True).click()


KINDS = {
    "[role=slider]": Slider,
    "select": Menu,
    "input[type=checkbox]": Box,
    ".widget-toggle-buttons": Toggles,
}
# Whatever else takes input: a test that passed it over would not notice if it broke.
UNKNOWN = "input:not([type=checkbox]), textarea, button:not(.widget-toggle-buttons button)"


def controls_in(widgets: Locator) -> list[Control]:
    """Return the controls below an element; AssertionError if there is one of another kind."""
    if strangers := widgets.locator(UNKNOWN).count():
        raise AssertionError(f"{strangers} controls that are neither slider, menu, box nor toggle buttons")
    return [kind(element) for selector, kind in KINDS.items() for element in widgets.locator(selector).all()]
