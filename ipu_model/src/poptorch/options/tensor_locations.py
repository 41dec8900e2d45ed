"""`Options.TensorLocations`: which memory each category of tensors lives in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poptorch.options.container import OptionsContainer

if TYPE_CHECKING:
    from typing_extensions import Self


class TensorLocationSettings(OptionsContainer):
    """Where the tensors of one category live; a key that was never set leaves the choice to the backend.

    Backend defaults: on chip, not sharded over replicas, off chip only from 2 elements and sharded only from
    8192 elements, moved through compute tiles.
    """

    def useOnChipStorage(self, use: bool | None = True) -> Self:
        """Keep the tensors on chip or in streaming memory; `None` leaves it to the backend again.

        Raises `AssertionError` for other types.
        """
        assert use is None or isinstance(use, bool), f"useOnChipStorage takes a bool or None; got {use!r}."
        return self.deleteIfExists("onChip") if use is None else self.createOrSet(onChip=int(use))

    def useReplicatedTensorSharding(self, use: bool = True) -> Self:
        """Split each tensor over the replicas; raise `AssertionError` for a non-bool."""
        return self._set_bool("useReplicatedTensorSharding", use)

    def useIOTilesToLoad(self, use: bool = True) -> Self:
        """Load the tensors through I/O tiles; raise `AssertionError` for a non-bool."""
        return self._set_bool("useIOTilesToLoad", use)

    def useIOTilesToStore(self, use: bool = True) -> Self:
        """Store the tensors through I/O tiles; raise `AssertionError` for a non-bool."""
        return self._set_bool("useIOTilesToStore", use)

    def minElementsForOffChip(self, min_elements: int) -> Self:
        """Keep tensors of fewer elements on chip; raise `AssertionError` for a non-int."""
        return self._set_int("minElementsForOffChip", min_elements)

    def minElementsForReplicatedTensorSharding(self, min_elements: int) -> Self:
        """Do not shard tensors of fewer elements; raise `AssertionError` for a non-int."""
        return self._set_int("minElementsForReplicatedTensorSharding", min_elements)

    def _set_bool(self, key: str, value: bool) -> Self:
        assert isinstance(value, bool), f"{key} takes a bool; got {value!r}."
        return self.createOrSet(**{key: value})

    def _set_int(self, key: str, value: int) -> Self:
        assert isinstance(value, int), f"{key} takes an int; got {value!r}."
        return self.createOrSet(**{key: value})


class _TensorLocationOptions(OptionsContainer):
    """Memory placement of four categories of tensors, and the tiles set aside for I/O."""

    def setActivationLocation(self, location: TensorLocationSettings) -> Self:
        """Place activations as `location` says now; raise `AssertionError` for another type."""
        return self._set_location("location_activation", location)

    def setWeightLocation(self, location: TensorLocationSettings) -> Self:
        """Place weights as `location` says now; raise `AssertionError` for another type."""
        return self._set_location("location_weight", location)

    def setOptimizerLocation(self, location: TensorLocationSettings) -> Self:
        """Place optimiser state as `location` says now; raise `AssertionError` for another type."""
        return self._set_location("location_optimizer", location)

    def setAccumulatorLocation(self, location: TensorLocationSettings) -> Self:
        """Place gradient accumulators as `location` says now; raise `AssertionError` for another type."""
        return self._set_location("location_accumulator", location)

    def numIOTiles(self, num_tiles: int) -> Self:
        """Set aside tiles of each IPU for I/O; raise `AssertionError` unless even and from 32 to 192."""
        self.checkIsFrozen()
        assert isinstance(num_tiles, int), f"numIOTiles takes an int; got {num_tiles!r}."
        assert num_tiles in range(32, 193, 2), f"numIOTiles takes an even number between 32 and 192; got {num_tiles}."
        return self.createOrSet(numIOTiles=num_tiles)

    def _set_location(self, key: str, location: TensorLocationSettings) -> Self:
        self.checkIsFrozen()
        assert isinstance(location, TensorLocationSettings), (
            f"{key} takes a poptorch.TensorLocationSettings; got {location!r}."
        )
        return self.createOrSet(**{key: location.toDict()})
