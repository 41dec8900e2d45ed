"""Repeated blocks, and checkpoints at their ends."""

from __future__ import annotations

import pytest
import torch
from memory_support import squares
from torch import nn
from tracing_support import traced

from ipu_model.capture.describe import step_of
from ipu_model.errors import Error
from ipu_model.explore.split import repeated_blocks, with_checkpoints
from ipu_model.predict import memory_of_program, samples_per_second
from ipu_model.predict.program import Program, Recomputation
from published.convolutional import day03

RESNET = step_of(day03())


def test_the_blocks_of_a_resnet_are_those_of_its_four_layers() -> None:
    """ResNet-101 has 3, 4, 23 and 3 bottlenecks."""
    blocks = repeated_blocks(RESNET)
    counts = [sum(block.startswith(f"model.layer{layer}.") for block in blocks) for layer in (1, 2, 3, 4)]
    assert counts == [3, 4, 23, 3]
    assert len(blocks) == sum(counts)


def test_layers_of_one_op_are_no_blocks() -> None:
    assert repeated_blocks(step_of(squares(4, width=16))) == ()


def test_a_checkpoint_is_the_result_that_leaves_its_module() -> None:
    found = with_checkpoints(RESNET, ["model.layer3.5"])
    marked = [op for op in found.ops if op.hints.recomputation_checkpoint]
    assert len(marked) == 1
    readers = {reader.scope for result in found.results_of(marked[0]) for reader in found.readers[result.name]}
    assert any(scope.startswith("model.layer3.6") for scope in readers)


def test_checkpoints_replace_those_that_there_were() -> None:
    twice = with_checkpoints(with_checkpoints(RESNET, ["model.layer3.5"]), ["model.layer3.7"])
    assert twice.ops == with_checkpoints(RESNET, ["model.layer3.7"]).ops


def test_unknown_modules_name_the_nearest() -> None:
    with pytest.raises(Error, match=r"no output of a module 'model.layer3.99'\. Nearest: model\.layer3\.9"):
        with_checkpoints(RESNET, ["model.layer3.99"])


def test_checkpoints_between_blocks_save_memory_for_time() -> None:
    """Two blocks of a deep network: recomputing between checkpoints holds one block's activations, not all."""
    blocks = [nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4))) for _ in range(6)]
    graph = traced(_Loss(nn.Sequential(*blocks)), torch.zeros(512, 64))
    kept = Program(step_of(graph), True, recomputation=Recomputation.NONE)
    names = repeated_blocks(kept.step)
    again = Program(with_checkpoints(kept.step, names), True, recomputation=Recomputation.ALL)
    assert len(names) == 6
    assert memory_of_program(again).max_tile_bytes < memory_of_program(kept).max_tile_bytes
    assert samples_per_second(again) < samples_per_second(kept)


class _Loss(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.blocks = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from ipu_model.capture import tracing

        loss: torch.Tensor = self.blocks(x).sum()
        trace = tracing.current()
        if trace is not None:
            trace.mark_loss(loss)
        return loss
