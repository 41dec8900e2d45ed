"""The progress of a search: how many programs were modelled, and which is being modelled now."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipu_model.explore.settings import Setting

if TYPE_CHECKING:
    from tqdm import tqdm


@dataclass(frozen=True)
class SearchBar:
    """A bar of tqdm that says what the search does."""

    bar: tqdm[Any]

    def modelling(self, setting: Setting) -> None:
        """Count a program, and say which it is."""
        self.bar.update()
        self.bar.set_postfix_str(str(setting))

    def capturing(self, setting: Setting) -> None:
        """Say that the module is captured with its changes, which takes longer than modelling it."""
        self.bar.set_postfix_str(f"capturing the module for {setting}", refresh=True)


@contextmanager
def search_bar(wanted: bool | None) -> Iterator[SearchBar]:
    """Show a bar: in a terminal or a notebook, unless told otherwise."""
    from tqdm.auto import tqdm

    is_shown = sys.stderr.isatty() or _is_in_notebook() if wanted is None else wanted
    form = "{desc}: {n} in {elapsed}{postfix}"
    with tqdm(desc="programs modelled", unit="", bar_format=form, disable=not is_shown, leave=False) as bar:
        yield SearchBar(bar)


def _is_in_notebook() -> bool:
    """Whether the program runs in a kernel with a front end, which is where IPython has been imported already."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")
