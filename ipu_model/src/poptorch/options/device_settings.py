"""The part of `Options` that decides which device runs the model and how it is attached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from poptorch.enums import ConnectionType, SyncPattern
from poptorch.options.structure import OptionsStructure

if TYPE_CHECKING:
    from typing_extensions import Self


class DeviceSettings(OptionsStructure):
    """Choice of the target, attachment, synchronisation and temporary memory."""

    def connectionType(self, connection_type: ConnectionType) -> Self:
        """Set when to attach to a device; raise `AssertionError` unless it is a `ConnectionType`."""
        assert isinstance(connection_type, ConnectionType), (
            f"connectionType takes a poptorch.ConnectionType; got {connection_type!r}."
        )
        return self.set(connection_type=connection_type.value)

    def useIpuModel(self, use_model: bool) -> Self:
        """Choose the simulator or hardware, whatever the environment variables say."""
        return self.createOrSet(use_model=use_model)

    def useIpuId(self, ipu_id: int) -> Self:
        """Choose a device by its system id; raise `AssertionError` for a non-int."""
        assert isinstance(ipu_id, int), f"useIpuId takes an int; got {ipu_id!r}."
        return self.createOrSet(ipu_id=ipu_id)

    def useOfflineIpuTarget(self, ipu_version: int = 2) -> Self:
        """Compile for IPU version 1, 2 or 21 without a device; the model then cannot run."""
        return self.connectionType(ConnectionType.Never).createOrSet(ipu_version=ipu_version)

    def syncPattern(self, sync_pattern: SyncPattern) -> Self:
        """Set which IPUs synchronise; raise `AssertionError` unless it is a `SyncPattern`."""
        assert isinstance(sync_pattern, SyncPattern), f"syncPattern takes a poptorch.SyncPattern; got {sync_pattern!r}."
        return self.set(sync_pattern=sync_pattern.value)

    def autoRoundNumIPUs(self, auto_round_num_ipus: bool = True) -> Self:
        """Reserve the next power of two of IPUs instead of failing when the model needs another number."""
        return self.set(auto_round_num_ipus=auto_round_num_ipus)

    def setAvailableMemoryProportion(self, available_memory_proportion: Mapping[str, float]) -> Self:
        """Set the share of tile memory that ops may use for temporary data, by IPU: `{"IPU0": 0.6}`.

        Replaces all earlier shares. Raises `AssertionError` for a key that does not start with `IPU`,
        `ValueError` if the rest of it is no integer.
        """
        self.checkIsFrozen()
        return self.set(
            available_memory_proportion={_ipu_of(key): value for key, value in available_memory_proportion.items()}
        )


def _ipu_of(key: str) -> int:
    assert str(key).startswith("IPU"), (
        f"Invalid key: {key}. IPUs are written 'IPU' and their index, for example 'IPU0'."
    )
    return int(key[len("IPU") :])
