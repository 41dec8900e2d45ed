"""The part of `Options` that decides how many samples a call takes and which results it returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from poptorch._logging import logger
from poptorch.enums import CommGroupType, OutputMode
from poptorch.options.strategies import ExecutionStrategy
from poptorch.options.structure import OptionsStructure

if TYPE_CHECKING:
    from typing_extensions import Self


class BatchSettings(OptionsStructure):
    """Loops, replicas, outputs, the execution strategy and the random seed."""

    def deviceIterations(self, device_iterations: int) -> Self:
        """Set how many iterations the device runs for one call: training steps, or inference batches."""
        return self.set(device_iterations=device_iterations)

    def replicationFactor(self, replication_factor: int) -> Self:
        """Set how many data-parallel copies of the model this process runs."""
        return self.set(replication_factor=replication_factor)

    def inputReplicaGrouping(self, input_group_size: int, input_group_type: CommGroupType) -> Self:
        """Give groups of replicas the same input; call `replicationFactor` first.

        Raises `AssertionError` for other types, `ValueError` for the type `All` and for a size that does not
        divide the replication factor.
        """
        self.checkIsFrozen()
        assert isinstance(input_group_size, int), f"input_group_size takes an int; got {input_group_size!r}."
        assert isinstance(input_group_type, CommGroupType), (
            f"input_group_type must be a poptorch.CommGroupType; got {input_group_type!r}."
        )
        if input_group_type is CommGroupType.All:
            raise ValueError("input_group_type cannot be All: use Consecutive, with the replication factor as size.")
        if input_group_type is CommGroupType.NoGrouping:
            input_group_size, input_group_type = 1, CommGroupType.Consecutive
        factor = self.replication_factor
        if input_group_size > factor:
            raise ValueError(
                f"input_group_size ({input_group_size}) cannot be larger than replication_factor ({factor}): "
                "call replicationFactor first."
            )
        if input_group_size < 1 or factor % input_group_size:
            raise ValueError(
                f"input_group_size ({input_group_size}) must be a factor of replication_factor ({factor})."
            )
        return self.set(input_group_size=input_group_size, input_cgt=input_group_type)

    def outputMode(self, output_mode: OutputMode, output_return_period: int | None = None) -> Self:
        """Set which micro-batches' outputs a call returns; `EveryN` needs the period (in micro-batches).

        Raises `AssertionError` if `output_mode` is no `OutputMode`, or the period is missing or not positive.
        """
        self.checkIsFrozen()
        _check_output_mode(output_mode, output_return_period)
        if output_return_period is not None and output_mode is not OutputMode.EveryN:
            logger.info(
                "output_return_period=%s has no effect with OutputMode.%s: only EveryN uses it.",
                output_return_period,
                output_mode.name,
            )
        return self.set(output_mode=output_mode.value, output_return_period=output_return_period or 1)

    def anchorTensor(
        self,
        short_name: str,
        long_name: str,
        output_mode: OutputMode | None = None,
        output_return_period: int = 1,
    ) -> None:
        """Ask for an internal tensor, to be read as `getAnchoredTensor(short_name)` after a run.

        `long_name` is one of `getTensorNames()`, such as `Gradient___fc1.weight`; a name that the model does not have
        is an error when it is compiled. Without a mode of its own the tensor follows the model's, and so it does with
        one, in this release of PopTorch too. Raises like `outputMode`, also when frozen.
        """
        self.checkIsFrozen()
        assert isinstance(short_name, str), f"The short name of an anchor must be a string; got {short_name!r}."
        assert isinstance(long_name, str), f"The name of the tensor to anchor must be a string; got {long_name!r}."
        mode = OutputMode.Default if output_mode is None else output_mode
        _check_output_mode(mode, output_return_period)
        period = output_return_period if mode is OutputMode.EveryN else 1
        self.anchored_tensors[short_name] = [long_name, mode is OutputMode.Default, mode, period]

    def setExecutionStrategy(self, strategy: ExecutionStrategy) -> Self:
        """Set how blocks are placed and scheduled; raise `AssertionError` unless it is a strategy object."""
        self.checkIsFrozen()
        assert isinstance(strategy, ExecutionStrategy), (
            "setExecutionStrategy takes a PipelinedExecution, ShardedExecution, SerialPhasedExecution or "
            f"ParallelPhasedExecution object; got {strategy!r}."
        )
        self._execution_strategy = strategy
        return self

    def randomSeed(self, random_seed: int) -> Self:
        """Seed the device's generator, and PyTorch's generator on the host at once.

        Raises `AssertionError` for a non-int; a frozen object raises after the host has been seeded.
        """
        assert isinstance(random_seed, int), f"The random seed must be an int; got {random_seed!r}."
        torch.manual_seed(random_seed)
        return self.createOrSet(random_seed=random_seed)

    def enableSyntheticData(self, enabled: bool | int) -> Self:
        """Switch host I/O off and let the device make up normally distributed inputs."""
        random_normal, off = 2, 0
        self._popart.set("syntheticDataMode", random_normal if enabled else off)
        return self

    def enableStableNorm(self, enabled: bool) -> Self:
        """Use the slower, more accurate formulas in normalisation layers."""
        self._popart.set("enableStableNorm", enabled)
        return self

    def broadcastBuffers(self, broadcast_buffers: bool = True) -> Self:
        """Keep one copy of the model's buffers for all replicas, or (`False`) one for each."""
        return self.set(broadcast_buffers=broadcast_buffers)


def _check_output_mode(mode: OutputMode, period: int | None) -> None:
    assert isinstance(mode, OutputMode), f"The output mode must be a poptorch.OutputMode; got {mode!r}."
    assert mode is not OutputMode.EveryN or (isinstance(period, int) and period > 0), (
        f"OutputMode.EveryN must have output_return_period, a positive int; got {period!r}."
    )
