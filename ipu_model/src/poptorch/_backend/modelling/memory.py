"""Whether a compiled program fits into the tiles' memory."""

from __future__ import annotations

import logging

from ipu_model.costed import lowered, memory_for
from ipu_model.errors import Error
from ipu_model.memory.verdict import note_on_memory, out_of_memory
from ipu_model.profiling.data import Memory
from ipu_model.program import Program
from ipu_model.recompute import kept_for_backward

_ALL_THE_SAME = (
    "poptorch.Options().enableProfiling(folder) compiles the program all the same and leaves a report of its memory."
)
_UNKNOWN = (
    "The IPU Model cannot say whether this program fits into memory: it met %s (%s), which is a fault of its own. The "
    "program's numbers are not affected; ipu_model.profile(model) shows where it happens."
)
_logger = logging.getLogger("poptorch::python")


def check_memory(program: Program, *, allowed: bool) -> None:
    """Refuse a program that clearly does not fit, unless running out of memory is `allowed`; warn of a close call.

    Raises:
        Error: names the fullest tile, what it holds and what usually helps; or hints that no device can follow.
    """
    try:
        memory = _memory(program)
    except Error:
        raise
    except Exception as problem:  # a fault of the performance model must not stop a program whose numbers are right
        _logger.warning(_UNKNOWN, type(problem).__name__, problem)
        return
    error = out_of_memory(memory, program)
    if error is not None and not allowed:
        raise Error(f"{error.message} {_ALL_THE_SAME}", type=error.type)
    if error is not None:
        _logger.warning("%s debug.allowOutOfMemory is on, so compilation goes on; a device could not.", error.message)
    note = note_on_memory(memory, program)
    if note is not None:
        _logger.warning("%s", note)


def _memory(program: Program) -> Memory:
    costs = lowered(program.graph, program.settings)
    return memory_for(program, costs, kept_for_backward(program))
