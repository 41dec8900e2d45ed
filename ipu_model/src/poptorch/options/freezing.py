"""Freezing: options that a model or a loader already relies on refuse changes."""

from __future__ import annotations


class Freezable:
    """Something that can be frozen together with its direct sub-options."""

    _is_frozen: bool

    def checkIsFrozen(self) -> None:
        """Raise `AttributeError` if the options are frozen."""
        if self._is_frozen:
            raise AttributeError(
                "Can't modify frozen Options: a model or a DataLoader relies on them by now. "
                "options.clone() gives a copy that can be changed."
            )

    def _sub_options(self) -> tuple[Freezable, ...]:
        return ()

    def _freeze(self) -> None:
        """Refuse changes from now on, here and in the direct sub-options."""
        self._is_frozen = True
        for sub_option in self._sub_options():
            sub_option._freeze()

    def _unfreeze(self) -> None:
        """Allow changes again, here and in the direct sub-options."""
        self._is_frozen = False
        for sub_option in self._sub_options():
            sub_option._unfreeze()
