"""Very long errors of a compilation: the text goes to a file, the error points to it."""

from __future__ import annotations

import contextlib
from pathlib import Path

from ipu_model.errors import Error

FILE = "poptorch_error.log"
_MOST_LINE_ENDS = 80


def move_long_message(error: BaseException) -> None:
    """Replace a message of more than 80 line ends by a pointer to `poptorch_error.log`, which then holds it.

    Where that file cannot be written, in the working directory, the error stays as it is.
    """
    if not isinstance(error, Error) or error.message.count("\n") <= _MOST_LINE_ENDS:
        return
    with contextlib.suppress(OSError):
        Path(FILE).write_text(f"{error}\n", encoding="utf-8")
        first = error.message.partition("\n")[0]
        error.message = f"{first} (the whole message is in {FILE})"
        error.args = (error.message,)
