"""The progress bar that a compilation shows."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm


class ProgressBar:
    """Shows `Graph compilation`, from the first call until progress has reached the total."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None

    def __call__(self, progress: int, total: int) -> None:
        """Show that `progress` of `total` ticks are done."""
        if self._bar is None:
            self._bar = tqdm(
                total=total,
                desc="Graph compilation",
                bar_format="{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}]",
            )
        self._bar.update(progress - self._bar.n)
        if progress >= total:
            self.close()

    def close(self) -> None:
        """Leave the bar as it stands; the next call starts another one."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
