"""`poptorch.ops`: what `forward` calls to mark losses, give hints, loop on the device and place its parts."""

from poptorch._impl import isRunningOnIpu
from poptorch.ops.annotations import (
    Attribute,
    MultiConv,
    NameScope,
    identity_loss,
    ipu_print_tensor,
    nop,
    recomputationCheckpoint,
    serializedMatMul,
    set_available_memory,
)
from poptorch.ops.blocks import (
    BeginBlock,
    Block,
    BlockFunction,
    LegacyBeginBlockFn,
    removeBlocks,
    set_overlap_for_input,
    set_overlap_for_output,
)
from poptorch.ops.blocks import _BlockHook as _BlockHook  # a name of PopTorch's
from poptorch.ops.dynamic import cond, ctc_beam_search_decoder, dynamic_slice, dynamic_update, for_loop, fps, nearest
from poptorch.ops.python_ops import CPU, custom_op

__all__ = [
    "CPU", "Attribute", "BeginBlock", "Block", "BlockFunction", "LegacyBeginBlockFn", "MultiConv", "NameScope",
    "cond", "ctc_beam_search_decoder", "custom_op", "dynamic_slice", "dynamic_update", "for_loop", "fps",
    "identity_loss", "ipu_print_tensor", "isRunningOnIpu", "nearest", "nop", "recomputationCheckpoint", "removeBlocks",
    "serializedMatMul", "set_available_memory", "set_overlap_for_input", "set_overlap_for_output",
]  # fmt: skip
