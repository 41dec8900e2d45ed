"""`Options._Popart`: settings handed to the backend under its own names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from poptorch.options.freezing import Freezable

if TYPE_CHECKING:
    from typing_extensions import Self


class _PopartOptions(Freezable):
    """Backend settings by name; keys and types are checked at compile time, not when they are set."""

    def __init__(self) -> None:
        self._is_frozen = False
        self.options: dict[str, Any] = {
            "instrumentWithHardwareCycleCounter": False,
            "rearrangeAnchorsOnHost": False,
        }

    def set(self, key: str, value: Any) -> Self:
        """Store a value under a backend key and return the object; raise `AttributeError` when frozen."""
        self.checkIsFrozen()
        self.options[key] = value
        return self

    def setPatterns(self, patterns: dict[str, bool], level: int = 2) -> Self:
        """Switch graph patterns on or off, starting from level 0 (none), 1 (minimal), 2 (default) or 3 (all).

        Raises `AssertionError` for other types.
        """
        self.checkIsFrozen()
        assert isinstance(level, int), f"The pattern level must be an int; got {level!r}."
        assert isinstance(patterns, dict), f"patterns must be a dict of name to bool; got {patterns!r}."
        assert {*map(type, patterns)} <= {str}, f"Pattern names must be strings; got {patterns!r}."
        assert {*map(type, patterns.values())} <= {bool}, f"Patterns are on or off, a bool; got {patterns!r}."
        self.options["patterns"] = dict(patterns)
        self.options["patterns_level"] = level
        return self

    def setEngineOptions(self, engine_options: dict[str, str]) -> Self:
        """Store the engine options dict and return the object; raise `AttributeError` when frozen."""
        return self.set("engineOptions", engine_options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self.options.items())})"
