"""Methods of PopTorch's executor that this version does not carry out: each refuses by name."""

from __future__ import annotations

from typing import Any, NoReturn

from ipu_model.errors import unsupported
from poptorch.support import REFUSED_METHODS


def _refusing(name: str, nearest: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise unsupported(f"PoplarExecutor.{name}()", nearest)

    method.__name__ = name
    method.__doc__ = f"Refused in this version. {nearest}"
    return method


class RefusedMethods:
    """Holds one refusing method for every entry of the support table."""


for _name, _nearest in REFUSED_METHODS.items():
    setattr(RefusedMethods, _name, _refusing(_name, _nearest))
