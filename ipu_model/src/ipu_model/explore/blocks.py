"""The repeated blocks of a model, and the checkpoints that recomputation may keep between them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import replace

from ipu_model.errors import Error
from ipu_model.explore.split import modules_of, times_entered
from ipu_model.predict.remembered import remembered
from ipu_model.step import Op, Phase, Step, with_ops

_FEWEST_OPS = 6
"""Modules with fewer forward ops are no blocks: a checkpoint after each of them would keep everything."""


@remembered
def repeated_blocks(step: Step) -> tuple[str, ...]:
    """Return the modules that stand in a row, such as the layers of a transformer, in the order of the forward pass.

    They are the outermost modules whose name is a number, of lists and sequences in which at least two of them run the
    same ops, and more than a few; the forward pass runs each of them once.
    """
    entered = times_entered(step)
    kinds: dict[str, list[str]] = {}
    for op in _forward(step):
        if block := _outermost_number(op.scope):
            kinds.setdefault(block, []).append(op.kind)
    rows: dict[str, list[tuple[str, ...]]] = {}
    for block, found in kinds.items():
        rows.setdefault(_row(block), []).append(tuple(found))
    repeating = {row for row, blocks in rows.items() if _repeat(blocks)}
    return tuple(block for block in kinds if _row(block) in repeating and entered[block] == 1)


def _row(block: str) -> str:
    return block.rpartition(".")[0]


def _repeat(blocks: list[tuple[str, ...]]) -> bool:
    """Whether two blocks of a row run the same ops, and enough of them to keep something between them."""
    large = [kinds for kinds in blocks if len(kinds) >= _FEWEST_OPS]
    return len(set(large)) < len(large)


def _outermost_number(scope: str) -> str:
    parts = scope.split(".")
    return next((".".join(parts[: at + 1]) for at, part in enumerate(parts) if part.isdecimal()), "")


def _forward(step: Step) -> Iterable[Op]:
    return (op for op in step.ops if op.phase is Phase.FORWARD)


def with_checkpoints(step: Step, modules: Iterable[str]) -> Step:
    """Return the step with `poptorch.recomputationCheckpoint` on the outputs of these modules, and on no others.

    Raises:
        Error: a module that the forward pass does not run.
    """
    wanted = dict.fromkeys(modules)
    last: dict[str, str] = {}
    for op in _forward(step):
        for module in modules_of(op.scope):
            if module in wanted and _leaves(op, module, step):
                last[module] = op.name
    missing = [module for module in wanted if module not in last]
    if missing:
        known = dict.fromkeys(name for op in _forward(step) for name in modules_of(op.scope))
        near = difflib.get_close_matches(missing[0], known, 3)
        raise Error(
            f"checkpoints: the forward pass has no output of a module {missing[0]!r}. Nearest: "
            f"{', '.join(near) or 'none'}."
        )
    chosen = frozenset(last.values())

    def marked(op: Op) -> Op:
        if op.hints.recomputation_checkpoint == (op.name in chosen):
            return op
        return replace(op, hints=replace(op.hints, recomputation_checkpoint=op.name in chosen))

    return with_ops(step, marked)


def has_checkpoints(step: Step) -> bool:
    """Whether the program marks tensors with `poptorch.recomputationCheckpoint` itself."""
    return any(op.hints.recomputation_checkpoint for op in step.ops)


def _leaves(op: Op, module: str, step: Step) -> bool:
    """Whether forward ops outside of the module read a result of `op`, or the program does."""
    for tensor in step.results_of(op):
        if tensor.name in step.outputs:
            return True
        readers = step.readers.get(tensor.name, ())
        if any(each.phase is Phase.FORWARD and not f"{each.scope}.".startswith(f"{module}.") for each in readers):
            return True
    return False
