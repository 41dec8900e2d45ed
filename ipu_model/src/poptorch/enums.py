"""PopTorch's public enumerations."""

from __future__ import annotations

from enum import Enum, IntEnum


class OutputMode(IntEnum):
    """Which micro-batches' outputs a call returns."""

    Final = 0
    EveryN = 1
    All = 2
    Sum = 3
    Default = 4


class DataLoaderMode(IntEnum):
    """How a `DataLoader` prepares batches: in line, in the background, or re-batched in the background."""

    Sync = 0
    Async = 1
    AsyncRebatched = 2


class AutoStage(IntEnum):
    """How a block without an explicit stage gets one: from its IPU, or a fresh number per new block."""

    SameAsIpu = 0
    AutoIncrement = 1


class ReductionType(IntEnum):
    """How gradients of micro-batches and replicas are combined."""

    Sum = 0
    Mean = 1
    NoReduction = 2


class ConnectionType(IntEnum):
    """When the program attaches to a device."""

    Always = 0
    OnDemand = 1
    Never = 2


class MeanReductionStrategy(IntEnum):
    """When the division of a mean reduction happens; `PostAndLoss` is kept for old code only."""

    Running = 0
    Post = 1
    PostAndLoss = 2


class MatMulSerializationMode(Enum):
    """The dimension along which `serializedMatMul` splits a product."""

    InputChannels = "input_channels"
    ReducingDim = "reducing_dim"
    OutputChannels = "output_channels"
    Disabled = "none"


class OverlapMode(Enum):
    """How far ahead of the computation a host transfer may run."""

    NoOverlap = "no_overlap"
    OverlapAccumulationLoop = "overlap_accumulation_loop"
    OverlapDeviceIterationLoop = "overlap_device_iteration_loop"


class SharingStrategy(IntEnum):
    """How an asynchronous loader hands the data set to its process."""

    SharedMemory = 0
    FileSystem = 1
    Fork = 2
    ForkServer = 3


class Liveness(IntEnum):
    """When tensors leave the chip in phased execution."""

    AlwaysLive = 0
    OffChipAfterFwd = 1
    OffChipAfterFwdNoOverlap = 2
    OffChipAfterEachPhase = 3


class SyncPattern(IntEnum):
    """Which IPUs synchronise with each other and with the host."""

    Full = 0
    SinglePipeline = 1
    ReplicaAndLadder = 2


class MultiConvPlanType(IntEnum):
    """Whether the convolutions of a `MultiConv` are planned side by side or one after another."""

    Parallel = 0
    Serial = 1


class CommGroupType(IntEnum):
    """How replicas are grouped; with `m` groups, orthogonal groups take every `m`-th replica."""

    All = 0
    Consecutive = 1
    Orthogonal = 2
    NoGrouping = 3


class VariableRetrievalMode(IntEnum):
    """Which replicas a variable is read from; PopTorch leaves the value 1 undefined."""

    OnePerGroup = 0
    AllReplicas = 2


class HalfFloatCastingBehavior(IntEnum):
    """Deprecated by PopTorch: has no effect."""

    FloatDowncastToHalf = 0
    HalfUpcastToFloat = 1
    Default = 2
