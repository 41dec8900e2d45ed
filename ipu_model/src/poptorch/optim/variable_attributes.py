"""Which hyper-parameters are streamed to the device, and which are compiled in."""

from __future__ import annotations

from collections.abc import Iterable


class VariableAttributes:
    """The variable (streamed) and constant (compiled in) attributes of one optimiser.

    They are changed before compiling. Every method raises AssertionError for an unknown name.
    """

    def __init__(self, attributes: Iterable[str], variable: Iterable[str] = ()) -> None:
        self._attributes = frozenset(attributes)
        self._variable = set(variable) & self._attributes

    def isConstant(self, attr: str) -> bool:
        """Return whether the value of `attr` is compiled in."""
        return self._known(attr) not in self._variable

    def markAsConstant(self, attr: str) -> None:
        """Compile the value of `attr` in; changing it later is an error."""
        self._variable.discard(self._known(attr))

    def markAsVariable(self, attr: str) -> None:
        """Stream `attr`, so that a new value takes effect with the next `setOptimizer`."""
        self._variable.add(self._known(attr))

    def copy(self) -> VariableAttributes:
        """Return an independent copy."""
        return VariableAttributes(self._attributes, self._variable)

    def _known(self, attr: str) -> str:
        if attr not in self._attributes:
            raise AssertionError(
                f"Unknown attribute {attr!r}: this optimizer has {', '.join(sorted(self._attributes))}."
            )
        return attr
