"""The categories that memory is divided into, as users see them."""

from __future__ import annotations

from typing import Final

VARIABLES: Final = "variables"
OPTIMISER_STATE: Final = "optimiser state"
ACCUMULATORS: Final = "gradient accumulators"
CONSTANTS: Final = "constants"
CONTROL_CODE: Final = "control code"
VERTEX_CODE: Final = "vertex code"
VERTEX_STATE: Final = "vertex state"
EXCHANGE_CODE: Final = "internal exchange code"
HOST_EXCHANGE_CODE: Final = "host exchange code"
GLOBAL_EXCHANGE_CODE: Final = "global exchange code"
RESERVED: Final = "stacks, gaps and other"
STREAM_BUFFERS: Final = "I/O tile buffers"
STASHES: Final = "stashes"
ACTIVATIONS: Final = "activations"
GRADIENTS: Final = "gradients"
TEMPORARIES: Final = "temporaries"
STREAMS: Final = "I/O buffers"

PARAMETERS: Final = (VARIABLES, OPTIMISER_STATE, ACCUMULATORS)
CODE: Final = (
    CONTROL_CODE, VERTEX_CODE, VERTEX_STATE, EXCHANGE_CODE, HOST_EXCHANGE_CODE, GLOBAL_EXCHANGE_CODE,
)  # fmt: skip
ALWAYS_LIVE: Final = (*PARAMETERS, CONSTANTS, *CODE, RESERVED, STREAM_BUFFERS)
OF_ACTIVATIONS: Final = (STASHES, ACTIVATIONS, GRADIENTS)
NOT_ALWAYS_LIVE: Final = (STASHES, ACTIVATIONS, GRADIENTS, TEMPORARIES, STREAMS)
"""Categories that share their memory with other data over time; stashes are free while weights are updated."""
