"""`Options.Distributed`: which of several processes this one is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from poptorch.options.container import OptionsContainer

if TYPE_CHECKING:
    from typing_extensions import Self


class _DistributedOptions(OptionsContainer):
    """Process count and rank; Open MPI's variables are read at construction."""

    def __init__(self) -> None:
        super().__init__(num_distributed_processes=1, distributed_process_id=0, ipuof_configs={})
        self._find_process()

    def _find_process(self) -> None:
        """Read Open MPI's variables; PopDist's options know of others."""
        self.setEnvVarNames("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")

    def disable(self) -> Self:
        """Become process 0 of 1, whatever the environment says."""
        return self.configureProcessId(0, 1)

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> Self:
        """Read process count (default 1) and rank (default 0) from these variables now.

        Raises `ValueError` if one of them does not hold an integer.
        """
        return self.configureProcessId(
            int(os.environ.get(var_process_id, "0")), int(os.environ.get(var_num_processes, "1"))
        )

    def configureProcessId(self, process_id: int, num_processes: int) -> Self:
        """Set rank and process count; raise `AssertionError` for a non-int."""
        return self.set(distributed_process_id=process_id, num_distributed_processes=num_processes)

    @property
    def processId(self) -> int:
        """Rank of this process, from 0."""
        return int(self.distributed_process_id)

    @property
    def numProcesses(self) -> int:
        """Number of processes of the program."""
        return int(self.num_distributed_processes)
