"""PopTorch's public enumerations."""

from __future__ import annotations

import copyreg
from enum import Enum, IntEnum

__all__ = [
    "AutoStage", "CommGroupType", "ConnectionType", "DataLoaderMode", "HalfFloatCastingBehavior", "Liveness",
    "MatMulSerializationMode", "MeanReductionStrategy", "MultiConvPlanType", "OutputMode", "OverlapMode",
    "ReductionType", "SharingStrategy", "SyncPattern", "VariableRetrievalMode",
]  # fmt: skip


class OutputMode(IntEnum):
    """Which of the outputs that a call computes it also returns.

    A call runs many micro-batches: for every device iteration, accumulation step and replica.
    """

    Final = 0  # those of the last micro-batch of each replica. The default of training models
    EveryN = 1  # those of every Nth micro-batch; `Options.outputMode` takes N as `output_return_period`
    All = 2  # those of all micro-batches. The default of inference models
    Sum = 3  # the sum of all micro-batches' outputs for each replica, such as a total of losses
    Default = 4  # not chosen yet; the wrapper chooses `Final` for training and `All` for inference


class DataLoaderMode(IntEnum):
    """Where and how a `DataLoader` prepares its items."""

    Sync = 0  # in this process when the item is asked for, or in torch's own worker processes
    Async = 1  # ahead of time in another process, which keeps the next items ready in shared memory
    # As `Async`, but torch's workers collate small chunks and the process joins them, so that several workers on an
    # iterable data set leave one remainder together instead of one each.
    AsyncRebatched = 2


class AutoStage(IntEnum):
    """How a block that was given no stage gets one."""

    SameAsIpu = 0  # the number of its IPU
    AutoIncrement = 1  # the next free number for each new block


class ReductionType(IntEnum):
    """How the gradients of micro-batches and replicas become one."""

    Sum = 0  # they are added
    Mean = 1  # they are added and divided by their number
    NoReduction = 2  # they stay apart; no option for training takes this member


class ConnectionType(IntEnum):
    """When a program attaches to a device."""

    Always = 0  # before it is compiled
    OnDemand = 1  # after it has been compiled, when it is about to run
    Never = 2  # not at all. The program can be compiled and saved, and cannot run


class MeanReductionStrategy(IntEnum):
    """When `ReductionType.Mean` divides; it changes the rounding only."""

    Running = 0  # at every step, so that the accumulator always holds a mean and overflows less in half precision
    Post = 1  # once, after the last micro-batch
    PostAndLoss = 2  # partly in the loss and partly at the end. Kept for old programs only


class MatMulSerializationMode(Enum):
    """The dimension along which `serializedMatMul` cuts the product of an [m, n] and an [n, p] matrix."""

    InputChannels = "input_channels"  # m, the rows of the first matrix
    ReducingDim = "reducing_dim"  # n, the dimension that is summed over; the partial products are added
    OutputChannels = "output_channels"  # p, the columns of the second matrix
    Disabled = "none"  # none; the product is computed at once


class OverlapMode(Enum):
    """How far the transfer of an input or output between host and device may overlap with computation."""

    NoOverlap = "no_overlap"  # the device waits for it
    OverlapAccumulationLoop = "overlap_accumulation_loop"  # it may, with other steps of the same device iteration
    OverlapDeviceIterationLoop = "overlap_device_iteration_loop"  # it may, with other device iterations, too


class SharingStrategy(IntEnum):
    """How an asynchronous loader starts its process and hands it the data set."""

    SharedMemory = 0  # a new interpreter, which gets the data set's tensors and arrays in shared memory
    FileSystem = 1  # a new interpreter, which gets them in a temporary file: for data sets larger than memory
    Fork = 2  # a copy of this process, which has the data set already; unsafe while other threads run
    ForkServer = 3  # a copy of a small server process, which gets the data set through a pipe. The default

    @classmethod
    def _missing_(cls, value: object) -> SharingStrategy | None:
        return cls.__members__.get(value) if isinstance(value, str) else None


class Liveness(IntEnum):
    """When phased execution moves tensors from the chip to streaming memory."""

    AlwaysLive = 0  # never; they stay on the chip
    OffChipAfterFwd = 1  # after the forward pass of a phase
    OffChipAfterFwdNoOverlap = 2  # likewise, and transfers do not overlap with the next phase
    OffChipAfterEachPhase = 3  # after every phase, forward and backward


class SyncPattern(IntEnum):
    """Which IPUs wait for one another before they exchange data with the host."""

    Full = 0  # all of them
    SinglePipeline = 1  # each IPU may exchange data with the host on its own
    ReplicaAndLadder = 2  # groups of IPUs take turns in exchanging data and computing


class MultiConvPlanType(IntEnum):
    """How the convolutions of a `MultiConv` are planned."""

    Parallel = 0  # side by side, each on a part of the tiles
    Serial = 1  # one after another, each on all tiles


class CommGroupType(IntEnum):
    """How N replicas are divided into groups of k that share a variable or an input."""

    All = 0  # all replicas form one group
    Consecutive = 1  # neighbours form a group: {0, ..., k-1}, {k, ..., 2k-1} and so on
    Orthogonal = 2  # with m = N / k groups, every mth replica: {0, m, 2m, ...}, {1, m+1, ...} and so on
    NoGrouping = 3  # each replica is a group of its own


class VariableRetrievalMode(IntEnum):
    """Which replicas' values of a variable come back to the host; PopTorch leaves the number 1 undefined."""

    OnePerGroup = 0  # that of the first replica of each group
    AllReplicas = 2  # those of every replica


class HalfFloatCastingBehavior(IntEnum):
    """Deprecated by PopTorch, and without effect: operations on mixed types follow PyTorch's promotion."""

    FloatDowncastToHalf = 0  # once cast float32 to float16 where an operation got both
    HalfUpcastToFloat = 1  # once cast float16 to float32 there
    Default = 2  # once meant `FloatDowncastToHalf`


# Python 3.11.0 to 3.11.3 pickles a member with `getattr`, which no file that is loaded may call.
for _name in __all__:
    copyreg.pickle(globals()[_name], lambda member: (type(member), (member.value,)))
