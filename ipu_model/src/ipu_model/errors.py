"""The exception classes that PopTorch programs catch; `poptorch` re-exports them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class Error(Exception):
    """Misuse found by the library; `message`, `type` and `location` are plain strings.

    `location` says inside of what it happened, innermost first, one numbered line each; it is no part of `message`.
    `str(error)`, which is `error.args[0]`, has all three.
    """

    def __init__(self, message: str, *, type: str = "poptorch_py_error", location: str = "") -> None:
        self.message, self.type, self.location = message, type, location
        super().__init__(self._text())

    def _text(self, remedy: str = "") -> str:
        context = f"\nError raised in:\n{self.location}" if self.location else ""
        return f"'{self.type}': {self.message}{remedy}{context}"

    def __reduce__(self) -> tuple[object, ...]:
        # The text is made already: no `__init__` makes it again.
        return self.__new__, (type(self), *self.args), vars(self)


class UnknownParameter(KeyError):
    """An optimizer was made from tensors that are no parameters of the model; `args[0]` says which."""


class OutOfMemory(Error):
    """A program that clearly does not fit into memory; `program` is the `Program`, for exploring what would fit."""

    program: object = None

    def __reduce__(self) -> tuple[object, ...]:
        """Leave the process as a plain `Error`, without the program."""
        return Error(self.message, type=self.type, location=self.location).__reduce__()


class RecoverableError(Error):
    """A device fault that a reset cures; `recovery_action` names the reset."""

    def __init__(self, message: str, *, recovery_action: str = "IPU_RESET", **more: str) -> None:
        self.recovery_action = recovery_action
        super().__init__(message, **{"type": "poplar_recoverable_runtime_error", **more})

    def _text(self, remedy: str = "") -> str:
        return super()._text(f". Recovery action required: {self.recovery_action}")


class UnrecoverableError(Error):
    """A hardware fault that no reset cures."""


def replace_message(error: Error, message: str) -> None:
    error.message = message
    error.args = (error._text(),)


def unsupported(feature: str, nearest: str) -> Error:
    return Error(f"{feature} is not supported by the IPU Model. {nearest}")


def require(condition: object, message: str) -> None:
    """Raise `AssertionError` with this message unless the condition holds: what PopTorch asserts, even with `-O`."""
    if not condition:
        raise AssertionError(message)


def checked_count(name: str, value: object, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise Error(f"{name} must be a whole number from {least} on, not {value!r}.")
    return value


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question that names what comes nearest, after a space; "" if nothing does."""
    near = difflib.get_close_matches(name, known, 1)
    return f" Did you mean {near[0]}?" if near else ""


def kind_of(thing: object) -> str:
    if thing is None:
        return "None"
    name = type(thing).__name__
    return f"{'an' if name[0].lower() in 'aeio' else 'a'} {name}"  # but a UNet
