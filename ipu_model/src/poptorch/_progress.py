"""The progress bar of graph compilation, on stderr."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm

from poptorch.options import Options

_TICKS = 100


@contextmanager
def compilation_progress(options: Options) -> Iterator[None]:
    """Show `Graph compilation` while the body runs, unless the options turn it off.

    The bar jumps to its end: compilation takes a second or less here, minutes on hardware.
    """
    if not options._show_compilation_progress_bar:
        yield
        return
    with tqdm(total=_TICKS, desc="Graph compilation") as bar:
        yield
        bar.update(_TICKS)
