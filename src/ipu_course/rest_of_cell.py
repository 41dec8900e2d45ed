"""Hide what a notebook cell shows after a result that waits: its tables and figures would tell the result."""

from __future__ import annotations

from IPython import get_ipython
from IPython.utils.capture import capture_output

__all__ = ["hide_rest_of_cell"]

_hiding = False


def hide_rest_of_cell() -> None:
    """Drop what the running cell prints and displays from here on; its code still runs, and notebooks show its errors.

    Outside IPython, nothing is hidden.
    """
    global _hiding
    shell = get_ipython()
    if shell is None or _hiding:
        return
    hidden = capture_output(stdout=True, stderr=False, display=True)

    def show_again(*_: object) -> None:
        global _hiding
        hidden.__exit__(None, None, None)
        shell.events.unregister("post_run_cell", show_again)
        _hiding = False

    hidden.__enter__()
    shell.events.register("post_run_cell", show_again)
    _hiding = True
