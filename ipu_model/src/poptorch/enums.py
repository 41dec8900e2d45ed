"""PopTorch's public enumerations."""

from __future__ import annotations

from enum import Enum, IntEnum


class OutputMode(IntEnum):
    """Which of the outputs that a call computes it also returns.

    A call runs many micro-batches: for every device iteration, accumulation step and replica.

    * `Final`: those of the last micro-batch of each replica. The default of training models.
    * `EveryN`: those of every Nth micro-batch; `Options.outputMode` takes N as `output_return_period`.
    * `All`: those of all micro-batches. The default of inference models.
    * `Sum`: the sum of all micro-batches' outputs for each replica, such as a total of losses.
    * `Default`: not chosen yet; the wrapper chooses `Final` for training and `All` for inference.
    """

    Final = 0
    EveryN = 1
    All = 2
    Sum = 3
    Default = 4


class DataLoaderMode(IntEnum):
    """Where and how a `DataLoader` prepares its items.

    * `Sync`: in this process when the item is asked for, or in torch's own worker processes.
    * `Async`: ahead of time in another process, which keeps the next items ready in shared memory.
    * `AsyncRebatched`: as `Async`, but torch's workers collate small chunks and the process joins them, so that several
      workers on an iterable data set leave one remainder together instead of one each.
    """

    Sync = 0
    Async = 1
    AsyncRebatched = 2


class AutoStage(IntEnum):
    """How a block that was given no stage gets one.

    * `SameAsIpu`: the number of its IPU.
    * `AutoIncrement`: the next free number for each new block.
    """

    SameAsIpu = 0
    AutoIncrement = 1


class ReductionType(IntEnum):
    """How the gradients of micro-batches and replicas become one.

    * `Sum`: they are added.
    * `Mean`: they are added and divided by their number.
    * `NoReduction`: they stay apart; no option for training takes this member.
    """

    Sum = 0
    Mean = 1
    NoReduction = 2


class ConnectionType(IntEnum):
    """When a program attaches to a device.

    * `Always`: before it is compiled.
    * `OnDemand`: after it has been compiled, when it is about to run.
    * `Never`: not at all. The program can be compiled and saved, and cannot run.
    """

    Always = 0
    OnDemand = 1
    Never = 2


class MeanReductionStrategy(IntEnum):
    """When `ReductionType.Mean` divides; it changes the rounding only.

    * `Running`: at every step, so that the accumulator always holds a mean and overflows less in half precision.
    * `Post`: once, after the last micro-batch.
    * `PostAndLoss`: partly in the loss and partly at the end. Kept for old programs only.
    """

    Running = 0
    Post = 1
    PostAndLoss = 2


class MatMulSerializationMode(Enum):
    """The dimension along which `serializedMatMul` cuts the product of an [m, n] and an [n, p] matrix.

    * `InputChannels`: m, the rows of the first matrix.
    * `ReducingDim`: n, the dimension that is summed over; the partial products are added.
    * `OutputChannels`: p, the columns of the second matrix.
    * `Disabled`: none; the product is computed at once.
    """

    InputChannels = "input_channels"
    ReducingDim = "reducing_dim"
    OutputChannels = "output_channels"
    Disabled = "none"


class OverlapMode(Enum):
    """How far the transfer of an input or output between host and device may overlap with computation.

    * `NoOverlap`: the device waits for it.
    * `OverlapAccumulationLoop`: it may overlap with other accumulation steps of the same device iteration.
    * `OverlapDeviceIterationLoop`: it may overlap with other device iterations, too.
    """

    NoOverlap = "no_overlap"
    OverlapAccumulationLoop = "overlap_accumulation_loop"
    OverlapDeviceIterationLoop = "overlap_device_iteration_loop"


class SharingStrategy(IntEnum):
    """How an asynchronous loader starts its process and hands it the data set.

    * `SharedMemory`: a new interpreter, which gets the data set's tensors and arrays in shared memory.
    * `FileSystem`: a new interpreter, which gets them in a temporary file: for data sets larger than memory.
    * `Fork`: a copy of this process, which has the data set already. It starts at once, and is unsafe while other
      threads run.
    * `ForkServer`: a copy of a small server process, which gets the data set through a pipe. The default.
    """

    SharedMemory = 0
    FileSystem = 1
    Fork = 2
    ForkServer = 3

    @classmethod
    def _missing_(cls, value: object) -> SharingStrategy | None:
        return cls.__members__.get(value) if isinstance(value, str) else None


class Liveness(IntEnum):
    """When phased execution moves tensors from the chip to streaming memory.

    * `AlwaysLive`: never; they stay on the chip.
    * `OffChipAfterFwd`: after the forward pass of a phase.
    * `OffChipAfterFwdNoOverlap`: likewise, and transfers do not overlap with the next phase.
    * `OffChipAfterEachPhase`: after every phase, forward and backward.
    """

    AlwaysLive = 0
    OffChipAfterFwd = 1
    OffChipAfterFwdNoOverlap = 2
    OffChipAfterEachPhase = 3


class SyncPattern(IntEnum):
    """Which IPUs wait for one another before they exchange data with the host.

    * `Full`: all of them.
    * `SinglePipeline`: each IPU may exchange data with the host on its own.
    * `ReplicaAndLadder`: groups of IPUs take turns in exchanging data and computing.
    """

    Full = 0
    SinglePipeline = 1
    ReplicaAndLadder = 2


class MultiConvPlanType(IntEnum):
    """How the convolutions of a `MultiConv` are planned.

    * `Parallel`: side by side, each on a part of the tiles.
    * `Serial`: one after another, each on all tiles.
    """

    Parallel = 0
    Serial = 1


class CommGroupType(IntEnum):
    """How N replicas are divided into groups of k that share a variable or an input.

    * `All`: all replicas form one group.
    * `Consecutive`: neighbours form a group: {0, ..., k-1}, {k, ..., 2k-1} and so on.
    * `Orthogonal`: with m = N / k groups, every mth replica: {0, m, 2m, ...}, {1, m+1, ...} and so on.
    * `NoGrouping`: each replica is a group of its own.
    """

    All = 0
    Consecutive = 1
    Orthogonal = 2
    NoGrouping = 3


class VariableRetrievalMode(IntEnum):
    """Which replicas' values of a variable come back to the host; PopTorch leaves the number 1 undefined.

    * `OnePerGroup`: that of the first replica of each group.
    * `AllReplicas`: those of every replica.
    """

    OnePerGroup = 0
    AllReplicas = 2


class HalfFloatCastingBehavior(IntEnum):
    """Deprecated by PopTorch, and without effect: operations on mixed types follow PyTorch's promotion.

    * `FloatDowncastToHalf`: once cast float32 to float16 where an operation got both.
    * `HalfUpcastToFloat`: once cast float16 to float32 there.
    * `Default`: once meant `FloatDowncastToHalf`.
    """

    FloatDowncastToHalf = 0
    HalfUpcastToFloat = 1
    Default = 2
