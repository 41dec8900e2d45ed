"""What `executor.weight` gives for a parameter of the wrapped module: a view of it."""

from __future__ import annotations

from typing import Any, NoReturn

from torch import nn

from ipu_model.errors import unsupported


class ParameterView:
    """Reads and writes attributes of a parameter (`.data`, `.shape`, ...); not a tensor itself.

    Pass `executor.model.<name>` to torch functions.
    """

    def __init__(self, parameter: nn.Parameter, name: str) -> None:
        self.__dict__["_parameter"], self.__dict__["_name"] = parameter, name

    def replicaGrouping(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused in this version: every replica has the same weights.

        Raises:
            Error: always.
        """
        raise unsupported(
            f"replicaGrouping() of parameter '{self.__dict__['_name']}'",
            "All replicas have the same weights: train one model for each group of replicas instead.",
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__dict__["_parameter"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_parameter"], name, value)

    def __repr__(self) -> str:
        return repr(self.__dict__["_parameter"])
