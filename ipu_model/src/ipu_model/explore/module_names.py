"""The names of modules as expressions of Python: `layers.3.norm` is `model.layers[3].norm`."""

from __future__ import annotations

from collections.abc import Sequence


def module_of(name: str) -> str:
    """Return the expression for a submodule of `model`."""
    text = "model"
    for part in name.split(".") if name else []:
        if part.isdecimal():
            text += f"[{part}]"
        else:
            text += f".{part}" if part.isidentifier() else f"[{part!r}]"
    return text


def items_of(names: Sequence[str]) -> str:
    """Return modules that are called by numbers as items of a list; those that follow one another as a slice."""
    rows: dict[str, list[int]] = {}
    for name in names:
        parent, _, number = name.rpartition(".")
        rows.setdefault(parent, []).append(int(number))
    return ", ".join(_row(parent, numbers) for parent, numbers in rows.items())


def _row(parent: str, numbers: Sequence[int]) -> str:
    first, last = numbers[0], numbers[-1]
    if len(numbers) > 1 and numbers == list(range(first, last + 1)):
        return f"*{module_of(parent)}[{first}:{last + 1}]"
    return ", ".join(module_of(f"{parent}.{number}" if parent else str(number)) for number in numbers)
