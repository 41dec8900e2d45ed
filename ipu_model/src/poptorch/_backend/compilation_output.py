"""What the user sees of a compilation: a progress bar, and a log file for very long errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ipu_model.errors import Error, replace_message
from poptorch._options_impl import ProgressBar
from poptorch.options import Options

_TICKS = 100


@contextlib.contextmanager
def compilation_progress(options: Options) -> Iterator[None]:
    """Show `Graph compilation` while the body runs, unless the options turn it off.

    The bar jumps to its end: compilation takes a second or less here, minutes on hardware.
    """
    if not options._show_compilation_progress_bar:
        yield
        return
    bar = ProgressBar()
    bar(0, _TICKS)
    try:
        yield
        bar(_TICKS, _TICKS)
    finally:
        bar.close()


_FILE = "poptorch_error.log"
_MOST_LINE_ENDS = 80


def move_long_message(error: BaseException) -> None:
    """Move a message with more than 80 line breaks to `poptorch_error.log` and refer to that file instead.

    If that file cannot be written to the working directory, the error does not change.
    """
    if not isinstance(error, Error) or error.message.count("\n") <= _MOST_LINE_ENDS:
        return
    with contextlib.suppress(OSError):
        Path(_FILE).write_text(f"{error}\n", encoding="utf-8")
        first = error.message.partition("\n")[0]
        replace_message(error, f"{first} (the whole message is in {_FILE})")
