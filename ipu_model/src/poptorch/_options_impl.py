"""The implementation of option objects: declared keys, typed values, freezing, printing; and the progress bar."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tqdm import tqdm
from typing_extensions import Self

from ipu_model.errors import did_you_mean, require

# Fragments of the paths that are skipped when an op is traced back to user code, unless the options say otherwise.
default_source_location_excludes = ["install/poptorch", "site-packages/torch", "site-packages/poptorch"]

_TYPES = {bool: "a bool", int: "an int"}


def check_type(name: str, value: object, kind: type) -> None:
    what = _TYPES.get(kind, f"a poptorch.{kind.__name__}")
    require(isinstance(value, kind), f"{name} takes {what}; got {value!r}.")


class ProgressBar:
    """Shows `Graph compilation`, from the first call until progress has reached the total."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None

    def __call__(self, progress: int, total: int) -> None:
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
        """Leave the bar as it is; the next call starts a new one."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class Freezable:
    _is_frozen: bool

    def checkIsFrozen(self, option: str | None = None) -> None:
        if self._is_frozen:
            raise AttributeError(
                "Can't modify frozen Options: a model or a DataLoader already uses them. "
                "options.clone() gives a copy that can be changed."
            )

    def _freeze(self) -> None:
        self._changeFreezeState(True)

    def _unfreeze(self) -> None:
        self._changeFreezeState(False)

    def _changeFreezeState(self, new_state: bool) -> None:
        self._is_frozen = new_state


class OptionsDict(Freezable):
    """Named values, each of the type of its current value; they read as attributes and are assigned through `set`."""

    _values: dict[str, Any]

    def __init__(self, **default_values: Any) -> None:
        self._declare(_values=default_values, _is_frozen=False)

    def _declare(self, **private: Any) -> None:
        """Declare private attributes: only these, and what a subclass has set before, may be assigned later."""
        self.__dict__.update(private)

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        if name in values:
            return values[name]
        raise AttributeError(f"Invalid attribute {name}.{self._nearest(name, OptionsDict.__dir__(self))}")

    def __setattr__(self, name: str, value: Any) -> None:
        on_class = getattr(type(self), name, None)
        is_private, is_set_up = name.startswith("_"), "_values" in self.__dict__
        is_declared = on_class is not None or not is_set_up
        if name in self.__dict__ or isinstance(on_class, property) or (is_private and is_declared):
            object.__setattr__(self, name, value)
        elif not is_private:
            self.set(**{name: value})
        else:
            raise AttributeError(f"Invalid private attribute {name} of {type(self).__name__}.")

    def __call__(self, option: str) -> Any:
        return OptionsDict.__getattr__(self, option)

    def _hasattr(self, option: str) -> bool:
        return option in self._values or option in self.__dict__

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.__dict__.get("_values", {})]

    def __copy__(self) -> Self:
        copied = type(self).__new__(type(self))
        copied.__dict__.update(self.__dict__, _values=dict(self._values))
        return copied

    def __repr__(self) -> str:
        stored = ", ".join(f"{key}={value!r}" for key, value in self._values.items())
        # PopTorch separates stored keys from the rest even when one side is empty.
        return f"{type(self).__name__}({stored}, {self._repr_of_the_rest()})"

    def _repr_of_the_rest(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items() if name != "_values")

    def set(self, **kwargs: Any) -> Self:
        """Change declared keys and return the object; if a key is unknown or its type another, none is changed."""
        self.checkIsFrozen()
        for name in kwargs:
            require(name in self._values, f"Invalid option {name}.{self._nearest(name, self._values)}")
        return self.createOrSet(**kwargs)

    def createOrSet(self, **kwargs: Any) -> Self:
        """Change keys and return the object, creating missing ones; the first value fixes the type."""
        self.checkIsFrozen()
        for name, value in kwargs.items():
            if name in self._values:
                expected = type(self._values[name])
                message = f"Unexpected type {type(value)} for option {name}. Expected {expected}."
                require(isinstance(value, expected), message)
        self._values.update(kwargs)
        return self

    def _set_backend(self, key: str, value: object) -> Self:
        self._popart.set(key, value)
        return self

    def exists(self, option: str) -> bool:
        return option in self._values

    def deleteIfExists(self, option: str) -> None:
        self.checkIsFrozen()
        self._values.pop(option, None)

    def toDict(self) -> dict[str, Any]:
        return self.update({})

    def update(self, other: dict[str, Any]) -> dict[str, Any]:
        common = sorted(set(self._values) & set(other))
        require(
            not common,
            f"Can't merge dictionaries, they have keys in common: {', '.join(common)}. "
            f"{type(self).__name__} emits these itself: set them with the options' own methods.",
        )
        other.update(self._values)
        return other

    def _nearest(self, name: str, known: Iterable[str]) -> str:
        if name.startswith("_"):
            return ""
        if callable(getattr(type(self), name, None)):
            return f" {name} is a method: call {name}(...)."
        return did_you_mean(name, [key for key in known if not key.startswith("_")])
