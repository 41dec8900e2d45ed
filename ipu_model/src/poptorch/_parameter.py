"""What `executor.weight` gives for a parameter of the wrapped module: a view of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from poptorch._errors import createPoptorchError
from poptorch._replica_grouping import groups_of

if TYPE_CHECKING:
    from poptorch._executor import PoplarExecutor
    from poptorch.enums import CommGroupType, VariableRetrievalMode


class ParameterView:
    """Reads and writes attributes of a parameter (`.data`, `.shape`, ...); not a tensor itself.

    Pass `executor.model.<name>` to torch functions.
    """

    def __init__(self, parameter: nn.Parameter, name: str, executor: PoplarExecutor) -> None:
        self.__dict__.update(_parameter=parameter, _name=name, _executor=executor)

    def replicaGrouping(
        self, comm_group_type: CommGroupType, shards: int, variable_retrieval_mode: VariableRetrievalMode
    ) -> None:
        """Let every group of replicas train its own slice: the leading dimension enumerates the groups.

        Forward sees the parameter without that dimension. `shards` is the number of replicas of a group, which `All`
        and `NoGrouping` do not need. Either retrieval mode gives one value for each group: replicas of a group have the
        same.

        Raises:
            AssertionError: arguments of another type.
            Error: the model is compiled; a scalar; groups that do not fit the replicas or the leading dimension.
        """
        view = self.__dict__
        executor, name = view["_executor"], view["_name"]
        if executor.isCompiled():
            raise createPoptorchError(
                f"replicaGrouping() of parameter '{name}': the model is compiled. Call it before the first call or "
                "compile(), or destroy() the model and wrap it again."
            )
        executor._host.groupings[name] = groups_of(
            name, view["_parameter"], executor.options, comm_group_type, shards, variable_retrieval_mode
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__dict__["_parameter"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_parameter"], name, value)

    def __repr__(self) -> str:
        return repr(self.__dict__["_parameter"])
