"""`popdist.poptorch.Options`: PopTorch's options with replicas and processes as `poprun` has divided them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import poptorch
from ipu_model.errors import Error
from popdist import environment
from poptorch._options_impl import OptionsDict

__all__ = ["Options"]


def _blocked(name: str, why: str) -> Callable[..., NoReturn]:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(f"Cannot call `{name}` with popdist.poptorch.Options: poprun decides on it.")

    refuse.__name__ = name.rpartition(".")[2]
    refuse.__doc__ = f"Refused: {why}."
    return refuse


class _DistributedOptions(poptorch.options._DistributedOptions):
    def __init__(self) -> None:
        place = environment.place()
        OptionsDict.__init__(
            self, num_distributed_processes=place.instances, distributed_process_id=place.instance, ipuof_configs={}
        )

    disable = _blocked("Distributed.disable", "`poprun` has started the processes")
    setEnvVarNames = _blocked("Distributed.setEnvVarNames", "PopDist's own variables are read")
    configureProcessId = _blocked("Distributed.configureProcessId", "`poprun` has numbered the processes")


class Options(poptorch.Options):
    """Options of an instance: its replicas, its index and the number of instances come from `poprun`.

    Without `poprun` it is one process with one replica. Raises `Error` if `poprun` was told another number of IPUs per
    replica.
    """

    def __init__(self, ipus_per_replica: int | None = None) -> None:
        super().__init__()
        if ipus_per_replica is not None and not environment.checkNumIpusPerReplica(ipus_per_replica):
            raise Error(
                f"popdist.poptorch.Options(ipus_per_replica={ipus_per_replica}): poprun was started with "
                f"--ipus-per-replica {environment.getNumIpusPerReplica()}. Give both the same number."
            )
        self._declare(
            _distributed=_DistributedOptions(), _ipus_per_replica=ipus_per_replica or environment.getNumIpusPerReplica()
        )
        self.set(replication_factor=environment.getNumLocalReplicas())

    def toDict(self) -> dict[str, Any]:
        """Return everything the backend is told, with the device that falls to this instance."""
        return {**super().toDict(), "ipu_id": environment.getDeviceId(self._ipus_per_replica)}

    replicationFactor = _blocked("replicationFactor", "`poprun --num-replicas` says how many there are")
    useIpuId = _blocked("useIpuId", "the device follows from the instance")
